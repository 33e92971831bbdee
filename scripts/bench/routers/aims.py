"""The goals of the router benchmark. Pure."""

from __future__ import annotations

from typing import Final

from report import Goal, at_least, at_most

from .figures import Rounds
from .rows import ALONE, PEERS, per_core

ADDED_MS: Final = 1.5
PER_CORE: Final = 0.5
LEFT_BYTES: Final = 16.0
"""Of one request. No object of Python's is smaller, so what leaves one behind for each request is above it; below it is noise."""


def goals(stream: bool, concurrency: int, found: Rounds) -> list[Goal]:
    met: list[Goal] = []
    answers = "streamed" if stream else "whole"
    for side, peer in PEERS.items():
        if side not in found:
            continue
        if concurrency == 1:
            what = "first byte" if stream else "p50"
            added = found.added(side, ALONE, lambda span: span.first_us if stream else span.p50_us) / 1e3
            met.append(at_most(f"{side}, {answers} answers: added {what}, ms, median, one at once", added, ADDED_MS))
        if stream and peer in found:
            ratio = found.ratio(side, peer, per_core(stream))
            met.append(at_least(f"{side} / {peer}: chunks per second and core, {concurrency} at once", ratio, PER_CORE))
    return met


def memory_goal(side: str, bytes_per_request: float) -> Goal:
    return at_most(f"{side}: bytes that a request leaves behind", bytes_per_request, LEFT_BYTES)
