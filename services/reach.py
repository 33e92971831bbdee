"""Whether this process can connect to other services: for `pegaflow doctor`, on the control socket of every service.

Only the first bytes of ZeroMQ's greeting are awaited, which come before any authentication: who answers, and whether it lets us
in, is not asked. So it works with and without CURVE and for every kind of socket.
"""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import suppress

from pegaflow.common.bus.rpc import Request
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.facts import Reach, Reached

SIGNATURE_BYTES = 10
AT_ONCE = 32
_GREETING_BYTES, _MECHANISM = 64, slice(12, 32)
_VERSIONED = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1"
"""The signature and ZMTP 3.1, upon which the other side sends all of its greeting."""
_open: set[asyncio.Task[None]] = set()


def answer(request: Request, message: Reach) -> None:
    """Replies when every endpoint was tried; one such request at a time."""
    if _open:
        request.fail(ErrorCode.BUSY, "another reach is under way")
        return
    task = asyncio.get_running_loop().create_task(_answer(request, message))
    _open.add(task)
    task.add_done_callback(_open.discard)


async def _answer(request: Request, message: Reach) -> None:
    request.reply(await reach(list(message.endpoints), message.wait_ms / 1e3))


async def reach(endpoints: list[str], wait_s: float) -> Reached:
    """Tries all of them, AT_ONCE at a time, each for `wait_s` at most."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(endpoint: str) -> tuple[str, int]:
        async with gate:
            begun = time.monotonic()
            code = await _try(endpoint, wait_s)
            return code, int((time.monotonic() - begun) * 1e6)

    found = await asyncio.gather(*map(one, endpoints))
    return Reached([code for code, _ in found], u32s(micros for _, micros in found))


async def mechanism(endpoint: str, wait_s: float) -> str:
    """What a TCP endpoint's greeting says: NULL, or CURVE where keys are needed. Empty: no whole greeting in time.

    We stop behind our version: whoever finds that the other speaks something else hangs up, its own greeting perhaps unsent.
    """
    host, _, port = endpoint.partition("#")[0].removeprefix("tcp://").rpartition(":")
    writer = None
    try:
        async with asyncio.timeout(wait_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(_VERSIONED)
            greeting = await reader.readexactly(_GREETING_BYTES)
            return greeting[_MECHANISM].rstrip(b"\0").decode("ascii")
    except (TimeoutError, asyncio.IncompleteReadError, OSError, ValueError):
        return ""
    finally:
        if writer is not None:
            writer.transport.abort()


async def _try(endpoint: str, wait_s: float) -> str:
    """Empty: a ZeroMQ socket greets. Else refused, no_route, deadline, silent, not_zmq, failed; not_here, no_permission (ipc)."""
    scheme, _, rest = endpoint.partition("#")[0].partition("://")
    writer = None
    late = "silent" if scheme == "ipc" else "deadline"
    try:
        async with asyncio.timeout(wait_s):
            if scheme == "ipc":
                reader, writer = await asyncio.open_unix_connection(rest)
            elif scheme == "tcp":
                host, _, port = rest.rpartition(":")
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            else:
                return "bad_endpoint"
            late = "silent"  # the kernel has accepted, as it does for a process that is stopped
            signature = await reader.readexactly(SIGNATURE_BYTES)
            return "" if signature[0] == 0xFF and signature[-1] == 0x7F else "not_zmq"
    except TimeoutError:
        return late
    except ConnectionRefusedError:
        return "refused"
    except (asyncio.IncompleteReadError, ConnectionError):
        return "not_zmq"
    except (FileNotFoundError, NotADirectoryError):
        return "not_here"
    except PermissionError:
        return "no_permission" if scheme == "ipc" else "failed"
    except OSError as error:
        if scheme == "ipc":  # the path is there and nobody refused: a queue full of those who wait for a stopped process
            return late
        return "no_route" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else "failed"
    except ValueError:
        return "bad_endpoint"
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.transport.abort()
