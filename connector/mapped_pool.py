"""The tier's pool as one process maps it, and the brackets that keep it mapped while a copy runs (docs/protocol.md 1.9)."""

from __future__ import annotations

import threading
from pathlib import Path

from pegaflow.common.pool import PoolView
from pegaflow.common.wire.messages.attach import Attached


class MappedPool:
    """`changed` guards the brackets and hears of every end of one. `view` is None while nothing is mapped."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._copies = 0
        self.view: PoolView | None = None

    def map(self, attached: Attached, writable: bool) -> None:
        """Raises OSError or PegaflowError where the files are not what the tier said."""
        self.view = PoolView.open(Path(attached.pool_path), Path(attached.table_path), attached.pool_bytes, writable)

    def begin(self) -> PoolView | None:
        """Opens a bracket; the caller holds `changed` and knows that the session lasts. None: nothing is mapped."""
        if self.view is not None:
            self._copies += 1
        return self.view

    def end(self) -> None:
        with self._changed:
            self._copies -= 1
            self._changed.notify_all()

    @property
    def copying(self) -> bool:
        with self._changed:
            return self._copies > 0

    def unmap(self) -> bool:
        """True: nothing is mapped any more. The caller has seen that no bracket is open."""
        if self.view is None:
            return True
        try:
            self.view.close()
        except BufferError:  # a copy's view of the memory is about to go
            return False
        self.view = None
        return True
