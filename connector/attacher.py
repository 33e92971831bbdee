"""Asks the tier to be attached until it answers yes, or no for good. Owns the process's lock (docs/protocol.md 1.2).

All methods run on the link's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from pegaflow.common import faults
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.fault_points import Point
from pegaflow.common.locks import ProcessLock
from pegaflow.common.version import package_version
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.attach import Attach, Attached
from pegaflow.common.wire.version import PROTOCOL
from pegaflow.connector.session import Member, TierOptions

RETRY_S = 0.25

log = logging.getLogger(__name__)


def _versions() -> list[str]:
    """For `pegaflow doctor`: what this engine runs on, as `name=value`."""
    found = {"python": platform.python_version(), "pyzmq": zmq.__version__}
    vllm = sys.modules.get("vllm")
    if vllm is not None:
        found["vllm"] = str(getattr(vllm, "__version__", "?"))
    return [f"{name}={value}" for name, value in found.items()]


class Identity(NamedTuple):
    """Who attaches. `layouts`: 16 bytes per shard; `gpu`: a device copies into the pool."""

    member: Member
    base: bytes
    fingerprint: bytes
    factors: Mapping[str, str]
    layouts: bytes
    page_bytes: Sequence[int]
    gpu: bool


class Attacher:
    """`attached` is called with each yes, `refused` with a no that asking again does not cure.

    `first_seq`: the number from which on the tier must listen; `mapped`: is a pool still mapped? Then the lock must stay.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rpc: RpcClient,
        options: TierOptions,
        identity: Identity,
        *,
        first_seq: Callable[[], int],
        mapped: Callable[[], bool],
        attached: Callable[[Attached], None],
        refused: Callable[[PegaflowError], None],
    ) -> None:
        self._loop, self._rpc, self._options, self._identity = loop, rpc, options, identity
        self._first_seq, self._mapped = first_seq, mapped
        self._attached, self._refused = attached, refused
        self._lock: ProcessLock | None = None
        self._asking = False
        self._closed = False
        self._told = ""

    def close(self) -> None:
        """Drops the lock: nothing may be mapped any more."""
        self._closed = True
        if self._lock is not None:
            self._lock.close()

    def ask(self) -> None:
        """Asks, again and again until the tier has answered. One question at a time."""
        if self._asking or self._closed:
            return
        self._asking = True
        try:
            ask = self._question()
            faults.reach(Point.CONNECTOR_ATTACH_BEFORE_SENT)
            self._rpc.send(ask, self._options.request_timeout_s, self._answered)
        except Exception:  # nobody else would ask again
            log.exception("pegaflow: could not ask to be attached; trying again")
            self._asking = False
            self._loop.call_later(RETRY_S, self.ask)

    def _question(self) -> Attach:
        member, base, fingerprint, factors, layouts, page_bytes, gpu = self._identity
        if self._lock is None:
            self._lock = ProcessLock.acquire(Path(self._options.runtime_dir) / "sessions")
            faults.reach(Point.CONNECTOR_LOCK_AFTER_TAKEN)
        return Attach(
            PROTOCOL,
            package_version(),
            member.engine,
            member.role,
            member.rank,
            member.shard,
            member.shards,
            member.stripe,
            member.stripes,
            base,
            fingerprint,
            [f"{name}={value}" for name, value in sorted(factors.items())],
            layouts,
            u32s(page_bytes),
            self._options.mode,
            os.getpid(),
            self._lock.name,
            self._lock.nonce,
            self._first_seq(),
            gpu,
            _versions(),
        )

    def _answered(self, answer: Any) -> None:
        self._asking = False
        if self._closed:
            return
        if isinstance(answer, Attached):
            self._told = ""
            self._attached(answer)
            return
        error = answer if isinstance(answer, PegaflowError) else PegaflowError(ErrorCode.BAD_MESSAGE, "no Attached")
        if error.code == ErrorCode.LOCK_NOT_VISIBLE and self._lock is not None and not self._mapped():
            self._lock.close()
            self._lock = None  # the directory was made anew: a lock that the tier can see needs a new file
        if error.retryable:
            self._tell(error)
            self._loop.call_later(RETRY_S, self.ask)
            return
        log.error("pegaflow: attach refused: %s", error)
        self._refused(error)

    def _tell(self, error: PegaflowError) -> None:
        """Once until another answer comes. A tier that says nothing is not refusing: whoever waits for it says that."""
        if error.code in (ErrorCode.DEADLINE, ErrorCode.UNREACHABLE) or error.code == self._told:
            return
        self._told = error.code
        log.warning("pegaflow: attach refused, asking again: %s", error)
