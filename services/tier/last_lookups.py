"""The last lookups and how they ended, pure: for whoever asks why a request missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

OVERHEAD = 250
"""Bytes of one entry besides its texts and key: the tuple, its numbers, the ring's place."""
MAX_REQUEST = 256
"""A longer request id is cut."""


class Ended(NamedTuple):
    """One lookup that was answered. `missing`: the first key that was not there, empty if all were."""

    at: float
    waited_s: float
    session: int
    fingerprint: bytes
    request: str
    asked: int
    hits: int
    tails: int
    tail_hit: bool
    fetched: int
    read: int
    reason: str
    missing: bytes


class LastLookups:
    """At most `limit` bytes of them; 0: none."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ring: deque[Ended] = deque()
        self.bytes = 0

    def ended(self, one: Ended) -> None:
        if not self._limit:
            return
        if len(one.request) > MAX_REQUEST:
            one = one._replace(request=one.request[:MAX_REQUEST])
        self._ring.append(one)
        self.bytes += _size(one)
        while self.bytes > self._limit:
            self.bytes -= _size(self._ring.popleft())

    def __len__(self) -> int:
        return len(self._ring)

    def of(self, request: str) -> Iterator[Ended]:
        """Those of requests whose id begins so, the latest first."""
        return (one for one in reversed(self._ring) if one.request.startswith(request[:MAX_REQUEST]))

    def since(self, now: float) -> float:
        """The time of the oldest that is remembered."""
        return self._ring[0].at if self._ring else now

    def validate(self) -> None:
        assert self.bytes == sum(map(_size, self._ring)) <= self._limit


def _size(one: Ended) -> int:
    return OVERHEAD + len(one.request) + len(one.missing) + len(one.reason)
