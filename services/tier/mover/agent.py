"""NIXL as the mover uses it: one agent, one registered pool, READs. The only module that imports nixl.

Built on the bindings, because `nixl_agent` fixes the progress thread's delay at 0 and would spin a core for ever. Handles
are plain numbers. All methods may be called from any thread: the agent is made with reader/writer locking.
"""

from __future__ import annotations

import importlib
import sys
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Microseconds the progress thread waits for UCX events before it looks anyway: 0 spins, 1,000 costs 1.4 % of a core when
# idle, 10,000 costs 0.3 %. Events wake it at once: a READ takes no longer with 20,000. What waits for its turns without
# events is the end of a broken connection (lane.py, _SETTLE_S).
PROGRESS_DELAY_US: Final = 10_000
_DEVICE: Final = 0


class State(Enum):
    """A READ that was posted and did not fail."""

    RUNNING = "running"
    DONE = "done"


class NixlError(Exception):
    """What NIXL raised, with whether the connection to the peer is gone.

    `disconnected`: UCX has closed the endpoint and completed all its requests, so nothing of them lands any more.
    """

    def __init__(self, text: str, disconnected: bool) -> None:
        super().__init__(text)
        self.disconnected = disconnected


class NixlAgent:
    """Owns one NIXL agent with the UCX backend; never deregisters: that would revoke nothing, and unmapping crashes peers."""

    __slots__ = ("_agent", "_backend", "_nixl")

    def __init__(self, name: str) -> None:
        """Starts UCX (takes its settings from the environment). `name` must be unique per process life."""
        self._nixl: Any = _bindings()
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = PROGRESS_DELAY_US
        config.useListenThread = False
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_RW
        self._agent: Any = self._nixl.nixlAgent(name, config)
        self._backend: Any = self._agent.createBackend("UCX", {"ucx_error_handling_mode": "peer"})

    def register(self, base: int, size: int) -> bytes:
        """Registers the pool and returns the agent's metadata."""
        self._agent.registerMem(self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(base, size, _DEVICE, "")]), [self._backend])
        return bytes(self._agent.getLocalMD())

    def connect(self, metadata: bytes) -> str:
        """Loads a peer's metadata (7-25 ms) and returns its agent name. Raises NixlError."""
        try:
            name = self._agent.loadRemoteMD(metadata)
        except Exception as error:
            raise self._error(error) from None
        return name.decode() if isinstance(name, bytes) else str(name)

    def disconnect(self, name: str) -> None:
        """Forgets a peer. Only for one without unfinished READs: those would land all the same."""
        try:
            self._agent.invalidateRemoteMD(name)
        except Exception as error:
            raise self._error(error) from None

    def prepare(self, name: str, local: npt.NDArray[np.uint64], remote: npt.NDArray[np.uint64], notify: bytes) -> int:
        """Makes a READ of equal-length [n, 3] descriptor arrays; nothing is sent yet. Raises NixlError.

        `notify` must not be empty: without a notification NIXL reports success even if a page is missing.
        """
        memory = self._nixl.DRAM_SEG
        try:
            handle = self._agent.createXferReq(
                self._nixl.NIXL_READ,
                self._nixl.nixlXferDList(memory, local),
                self._nixl.nixlXferDList(memory, remote),
                name,
                notify,
                [self._backend],
            )
        except Exception as error:
            raise self._error(error) from None
        return int(handle)

    def post(self, handle: int) -> State:
        """Begins the READ. Over `cma` this call makes the copy itself (with the GIL released). Raises NixlError."""
        try:
            return self._state(self._agent.postXferReq(handle))
        except Exception as error:
            raise self._error(error) from None

    def state(self, handle: int) -> State:
        """Where the READ stands; also drives UCX. Raises NixlError."""
        try:
            return self._state(self._agent.getXferStatus(handle))
        except Exception as error:
            raise self._error(error) from None

    def release(self, handle: int) -> None:
        """Frees the handle of a READ that has ended. Raises NixlError."""
        try:
            self._agent.releaseXferReq(handle)
        except Exception as error:
            raise self._error(error) from None

    def notifications(self) -> int:
        """Takes what readers of our pool have sent and returns how many it was; unread they pile up in memory."""
        return sum(map(len, self._agent.getNotifs({}, []).values()))

    def _state(self, status: Any) -> State:
        if status == self._nixl.NIXL_SUCCESS:
            return State.DONE
        if status == self._nixl.NIXL_IN_PROG:
            return State.RUNNING
        raise NixlError(str(status), disconnected=False)

    def _error(self, error: Exception) -> NixlError:
        if isinstance(error, NixlError):
            return error
        gone = isinstance(error, self._nixl.nixlRemoteDisconnectError)
        return NixlError(f"{type(error).__name__}: {error}", disconnected=gone)


def _bindings() -> Any:
    """nixl's bindings without torch. Raises ImportError.

    To choose between its CUDA builds nixl reads torch's version from disk and, if that names none, imports torch: over a second
    of start for nothing. A blocked name makes it go on without.
    """
    modules: dict[str, Any] = sys.modules
    blocked = "torch.version" not in modules
    if blocked:
        modules["torch.version"] = None
    try:
        return importlib.import_module("nixl._bindings")
    finally:
        if blocked:
            del modules["torch.version"]
