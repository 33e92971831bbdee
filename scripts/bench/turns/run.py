"""One run: a configuration that was just started, a few requests alone, then all conversations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import uvloop

from environment.progress import say, step
from turns.client import Client
from turns.doubts import restarted
from turns.heard import Heard
from turns.hits import Growth
from turns.record import Arrival, Run
from turns.stand import Stand, used
from turns.workload import Workload


def one_run(
    stand: Stand,
    workload: Workload,
    model_name: str,
    arrival: Arrival,
    times: Sequence[Sequence[float]] | None,
    alone: int,
    number: int,
) -> Run:
    """`alone`: how many requests each URL is asked one after the other before; `number`: of the round.

    Raises HttpFailure when counters cannot be had.
    """
    shape = workload.shape

    def client() -> Client:
        return Client(stand.urls, model_name, shape.answer)

    async def one_by_one(sessions: Sequence[int]) -> list[Heard]:
        async with client() as asked:
            return [await asked.ask(session, 0, workload.spare()) for session in sessions]

    async def all_at_once() -> list[Heard]:
        async with client() as asked:
            return await asked.converse(workload, times)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        def heard(what: Coroutine[Any, Any, list[Heard]]) -> list[Heard]:
            return runner.run(what)

        pids = stand.pids()
        start = stand.seen()
        with step(f"{stand.kind}: first requests, then {alone} alone at each"):
            first = heard(one_by_one(range(len(stand.urls))))
            lone = heard(one_by_one([url for url in range(len(stand.urls)) for _ in range(alone)]))
        before = stand.settled(start, len(first) + len(lone))
        cpu, own, began = stand.cpu(), time.process_time(), time.monotonic()
        with step(f"{stand.kind}: {shape.sessions} conversations of {shape.turns} turns, {arrival} loop"):
            talked = heard(all_at_once())
        own = time.process_time() - own
        seconds = max(one.ended for one in talked) - began
        spent = used(cpu, stand.cpu()) | {"client": own}
        after = stand.settled(before, shape.requests)
    parts = (tuple(talked), tuple(first), tuple(lone))
    left = stand.left()
    noticed = (*stand.uncounted, *restarted(pids, stand.pids()))
    run = Run(stand.kind, arrival, *parts, seconds, spent, Growth(before, after), left, noticed, number)
    say(f"  {len(run.good(shape.answer))} of {shape.requests} answers in {seconds:.1f} s")
    return run
