"""An address that cannot be listened on, as a start that fails with a code."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Final

from pegaflow.common.start_error import StartError
from pegaflow.common.wire.errors import ErrorCode

_LATER: Final = {socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM}
_WRONG: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM, errno.EINVAL, None}
"""None: asyncio found no address of the host that it could bind."""


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Around what binds this address. What it raises because of the address becomes a StartError; the rest stays as it is.

    `address_in_use`; `bad_endpoint`: a name that nobody knows, an address of another machine, a port that this user may not
    have; `not_resolved`: no resolver answers now.
    """
    try:
        yield
    except OSError as error:
        code = _code(error)
        if code is None:
            raise
        raise StartError(code, f"cannot listen on {host!r} port {port}: {error.strerror or error}") from None
    except (TypeError, ValueError) as error:  # a name that cannot even be asked for
        raise StartError(ErrorCode.BAD_ENDPOINT, f"cannot listen on {host!r} port {port}: {error}") from None


def _code(error: OSError) -> str | None:
    number = error.errno
    if number == errno.EADDRINUSE:
        return "address_in_use"
    # Numbers of the resolver are below 0. Not by class: socket.create_server makes an OSError of a gaierror, with its number.
    if number is not None and number < 0:
        return "not_resolved" if number in _LATER else ErrorCode.BAD_ENDPOINT
    return ErrorCode.BAD_ENDPOINT if number in _WRONG else None
