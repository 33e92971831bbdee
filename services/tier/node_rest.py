"""An operator lets a node rest, or work again. That it drains outlives the life of its tier: a mark in the runtime directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pegaflow.common import logs
from pegaflow.common.bus.rpc import Request
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import NodeDrain
from pegaflow.services.tier.draining import Draining

NAME: Final = "draining"
_HAND_OVER: Final = "hand_over"

log = logs.get(__name__)


class DrainMark:
    """One file, which says that the node drains, and whether it hands its pages over. Raises OSError."""

    def __init__(self, runtime_dir: Path) -> None:
        self._path = runtime_dir / NAME

    def read(self) -> bool | None:
        """`hand_over`; None: it does not drain."""
        try:
            return self._path.read_text(encoding="ascii").strip() == _HAND_OVER
        except FileNotFoundError:
            return None

    def set(self, hand_over: bool) -> None:
        fresh = self._path.with_name(f"{NAME}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(_HAND_OVER if hand_over else "stay")
        fresh.replace(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class NodeRest:
    """`changed` is called when others have to hear of it."""

    def __init__(self, runtime_dir: Path, draining: Draining, lifecycle: Lifecycle, changed: Callable[[], None]) -> None:
        self._mark, self._draining, self._lifecycle, self._changed = DrainMark(runtime_dir), draining, lifecycle, changed

    def resume(self, *, can_hand_over: bool) -> None:
        """At the start of a life: a node that drained before drains on. Raises OSError."""
        hand_over = self._mark.read()
        if hand_over is not None:
            self._begin(hand_over and can_hand_over)

    def commanded(self, request: Request) -> None:
        """Answers `node_drain` or `node_undrain`."""
        message = request.message
        try:
            if isinstance(message, NodeDrain):
                self._begin(message.hand_over)
                self._mark.set(message.hand_over)
            else:
                self._mark.clear()
                self._end()
        except RemoteError as error:
            request.fail(error.code, error.text)
        except OSError as error:
            request.fail(ErrorCode.INTERNAL, f"the next life of this tier will not know of it: {error}")
        else:
            request.reply(Done())
        self._changed()

    def _begin(self, hand_over: bool) -> None:
        self._draining.begin(hand_over)
        self._lifecycle.rest(True)
        log.info("node_drains", hand_over=hand_over)

    def _end(self) -> None:
        self._draining.end()
        self._lifecycle.rest(False)
        log.info("node_undrained")
