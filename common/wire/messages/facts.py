"""Facts for whoever looks for what is wrong: what a process is made of, what it can reach, how fast its disk is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import U32, Int, Strs, message

MAX_ENDPOINTS = 256
MAX_WAIT_MS = 10_000
MAX_DISK_BYTES = 256 << 20


@message
@dataclass(frozen=True, slots=True)
class Facts:
    """What are you made of? Answered with a document: versions, limits, folders and their modes, options without secrets."""

    KIND: ClassVar[str] = "facts"


@message
@dataclass(frozen=True, slots=True)
class Reach:
    """Which of these endpoints can you connect to? Each gets `wait_ms`; nothing but ZeroMQ's greeting is read from them."""

    KIND: ClassVar[str] = "reach"
    endpoints: Strs
    wait_ms: Int

    def check(self) -> str | None:
        if len(self.endpoints) > MAX_ENDPOINTS:
            return f"{len(self.endpoints)} endpoints, at most {MAX_ENDPOINTS}"
        return None if 0 < self.wait_ms <= MAX_WAIT_MS else f"{self.wait_ms} ms, expected 1 to {MAX_WAIT_MS}"


@message
@dataclass(frozen=True, slots=True)
class Reached:
    """Per endpoint why not, empty if it can be reached, and how many microseconds connecting took."""

    KIND: ClassVar[str] = "reached"
    codes: Strs
    micros: U32

    def check(self) -> str | None:
        return None if len(self.codes) == len(self.micros) else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """How fast is your disk? Writes a file of `bytes` where its pages lie, reads it, removes it. Answered with a document."""

    KIND: ClassVar[str] = "disk_speed"
    bytes: Int

    def check(self) -> str | None:
        return None if 0 < self.bytes <= MAX_DISK_BYTES else f"{self.bytes} bytes, expected 1 to {MAX_DISK_BYTES}"
