"""How the rounds under one load become rows of the table and goals. Pure."""

from __future__ import annotations

from typing import Any, Final

from .figures import Rounds, What, slope

ALONE: Final = "backend alone"
NGINX: Final = "nginx"
OURS, OURS_PD, OURS_FIRST = "pegaflow", "pegaflow P/D", "pegaflow first token"
THEIRS, THEIRS_PD = "vllm-router", "vllm-router P/D"
PEERS: Final = {OURS: THEIRS, OURS_PD: THEIRS_PD, OURS_FIRST: THEIRS_PD}
"""Whom each of our modes is compared with."""
MIB: Final = 1 << 20


def rows(stream: bool, concurrency: int, found: Rounds) -> list[dict[str, Any]]:
    """One for each side: streamed answers are counted in chunks, whole ones as such."""
    return [_row(stream, concurrency, found, side) for side in found.sides]


def _row(stream: bool, concurrency: int, found: Rounds, side: str) -> dict[str, Any]:
    row: dict[str, Any] = {"answers": "streamed" if stream else "whole", "at once": concurrency, "through": side}
    row["requests/s"] = round(found.median(side, lambda span: span.answers_s))
    for name, what in _latencies(stream):
        row[f"{name} us"] = round(found.median(side, what))
        row[f"added {name} us"] = "" if side == ALONE else round(found.added(side, ALONE, what))
    row["p99 us"] = round(found.median(side, lambda span: span.p99_us))
    row["chunks/s"] = round(found.median(side, lambda span: span.chunks_s)) if stream else ""
    if side != ALONE:
        row["cores"] = found.median(side, lambda span: span.cores)
        row["requests/s/core"] = round(found.median(side, lambda span: span.answers_core))
        row["chunks/s/core"] = round(found.median(side, lambda span: span.chunks_core)) if stream else ""
        peer = PEERS.get(side, "")
        if peer in found:
            row["/vllm-router, per core"] = found.ratio(side, peer, per_core(stream))
    return row


def _latencies(stream: bool) -> list[tuple[str, What]]:
    whole: list[tuple[str, What]] = [("p50", lambda span: span.p50_us)]
    return [("first byte", lambda span: span.first_us), *whole] if stream else whole


def per_core(stream: bool) -> What:
    """What is compared: done for a second of the router's CPU."""
    return lambda span: span.chunks_core if stream else span.answers_core


def memory_row(side: str, warm: int, points: list[tuple[float, float]]) -> dict[str, Any]:
    """`points`: requests since the warm-up, resident bytes."""
    return {
        "memory of": side,
        "warm-up": warm,
        "requests": round(points[-1][0] - points[0][0]),
        "MiB after warm-up": points[0][1] / MIB,
        "MiB at the end": points[-1][1] / MIB,
        "bytes/request": slope(points),
    }
