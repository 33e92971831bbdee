"""What a router's memory does over many requests."""

from __future__ import annotations

from typing import Final

from helper import Helper

from routers.costs import resident
from routers.question import Question
from routers.sides import Side

CONCURRENCY: Final = 16
TOKENS: Final = 4
"""Of an answer: what stays behind belongs to requests, not to chunks."""
SLICES: Final = 20


def memory(load: Helper, side: Side, endpoint: str, warm: int, requests: int) -> list[tuple[float, float]]:
    """Requests since the warm-up and resident bytes, before the first slice and after each; half of the answers streamed."""
    _ask(load, side, endpoint, warm)
    pid = side.pids[0]
    points = [(0.0, float(resident(pid)))]
    each = max(2, requests // SLICES)
    while points[-1][0] < requests:
        _ask(load, side, endpoint, each)
        points.append((points[-1][0] + each // 2 * 2, float(resident(pid))))
    return points


def _ask(load: Helper, side: Side, endpoint: str, requests: int) -> None:
    for stream in (True, False):
        question = Question(endpoint, stream, TOKENS)._asdict()
        load.do(**question, port=side.port, concurrency=CONCURRENCY, requests=requests // 2, pids=side.pids)
