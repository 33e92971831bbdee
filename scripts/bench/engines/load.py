"""What is asked of a side: cold and warm prompts, a workload without any hit, bystanders beside saves and loads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from engines.figures import Step, moved
from engines.processes import Thread, since
from engines.side import REJOIN_S, Side, SideFailed

BYSTANDERS = 3
IDLE_S = 0.001
"""CPU time that the held side may show: none, but for rounding."""
STEPS_BETWEEN = 5
"""Tokens of each bystander between two others."""


class Prompts:
    """Random ids that never come twice; any ids cost the same to compute."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fresh(self, length: int) -> list[int]:
        return [self._random.randrange(1000, 40000) for _ in range(length)]


class NotHeld(SideFailed):
    """It is not the side that was asked which has failed. `used`: seconds of CPU of those that were to be held, by name."""

    def __init__(self, used: Mapping[str, float]) -> None:
        super().__init__(", ".join(f"{name} used {seconds:.3f} s of CPU while it was held" for name, seconds in used.items()))
        self.used = used


@contextmanager
def busy(side: Side, others: Sequence[Side]) -> Iterator[None]:
    """Only within, `side` may run, and `others` may not. Raises NotHeld when one of them has used the CPU all the same."""

    def so_far() -> dict[str, float]:
        return {other.name: sum(other.cpu().values()) for other in others}

    idle = so_far()
    side.let_go()
    yield
    side.hold()
    if used := moved(idle, so_far(), IDLE_S):
        raise NotHeld(used)


def saves_again(side: Side, prompts: Prompts) -> None:
    """Returns once its session can be used again after it was held. Raises SideFailed when that does not come."""
    before = side.total("pegaflow_pages_saved_total")
    deadline = time.monotonic() + REJOIN_S
    while True:
        side.complete(prompts.fresh(40), 1)
        if not side.with_connector or side.total("pegaflow_pages_saved_total") > before:
            break
        if time.monotonic() > deadline:
            raise SideFailed("the connector does not save again after the tier was held")
        time.sleep(0.05)
    side.journal.read()


class Throughput(NamedTuple):
    """`tokens`: prompts' and answers' ids. `cpu`: seconds by thread, of the engine, its tier and its metaserver.
    `threads`: names of the worker's Python threads.
    """

    tokens: int
    seconds: float
    cpu: dict[Thread, float]
    threads: dict[int, str]
    roles: dict[int, str]
    hits: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_seconds(self) -> float:
        return sum(self.cpu.values())


def without_hits(side: Side, wanted: Sequence[list[int]], answer: int, at_once: int) -> Throughput:
    """`wanted`: prompts that nobody has seen, `at_once` at a time; an answer has `answer` ids."""
    hits = _hits(side)
    before = side.cpu()
    start = time.monotonic()
    with ThreadPoolExecutor(at_once) as clients:
        list(clients.map(lambda prompt: side.complete(prompt, answer), wanted))
    seconds = time.monotonic() - start
    used = since(before, side.cpu())
    tokens = sum(len(prompt) + answer for prompt in wanted)
    return Throughput(tokens, seconds, used, side.worker_threads(), side.roles(), _hits(side) - hits)


def _hits(side: Side) -> float:
    """Prompt positions that were not computed, from wherever."""
    return side.total("vllm:prompt_tokens_cached_total") + side.total("pegaflow_pages_loaded_total")


class Ttft(NamedTuple):
    """Milliseconds. `stages`: where they went, for a request that the connector loaded."""

    ms: float
    stages: dict[str, float]


def first_token(side: Side, prompt: list[int]) -> Ttft:
    """Raises SideFailed when the engine has not seen one request, HttpFailure."""
    side.journal.read()
    seconds, asked = side.first_token(prompt)
    seen = list(side.journal.read().stages.values())
    if len(seen) != 1:
        raise SideFailed(f"{side.name}: one request was asked, and its engine's journal has {len(seen)}")
    (stages,) = seen
    return Ttft(seconds * 1e3, split(stages, asked, asked + seconds))


def split(stages: dict[str, float], asked: float, came: float) -> dict[str, float]:
    """Milliseconds from each stage to the one after it; {} for a request that loaded nothing."""
    if "received" not in stages:
        return {}
    names = {"added": "to_engine", "claimed": "lookup", "received": "load", "scheduled": "wait", "first": "forward"}
    found: dict[str, float] = {}
    last = asked
    for stage, name in names.items():
        found[name] = (stages[stage] - last) * 1e3
        last = stages[stage]
    return found | {"to_client": (came - last) * 1e3}


class _Bystander:
    """One long answer, read token by token until `stop`."""

    def __init__(self, side: Side, prompt: list[int], stop: threading.Event) -> None:
        self.tokens = 0
        self._side, self._prompt, self._stop = side, prompt, stop

    def __call__(self) -> None:
        for _ in self._side.stream(self._prompt, 4000):
            self.tokens += 1
            if self._stop.is_set():
                return
        raise SystemExit("a bystander's answer ended before the others were served")


def beside_bystanders(side: Side, prompts: Prompts, others: list[list[int]]) -> list[Step]:
    """Steps of an engine that decodes BYSTANDERS answers while `others` come one after the other, each for one token."""
    stop = threading.Event()
    bystanders = [_Bystander(side, prompts.fresh(40), stop) for _ in range(BYSTANDERS)]
    with ThreadPoolExecutor(BYSTANDERS) as clients:
        running = [clients.submit(each) for each in bystanders]

        def pass_tokens(count: int) -> None:
            goals = [each.tokens + count for each in bystanders]
            while any(each.tokens < goal for each, goal in zip(bystanders, goals, strict=True)):
                if any(future.done() for future in running):
                    return  # its error comes out below
                time.sleep(0.005)

        try:
            pass_tokens(3)
            side.journal.read()
            for prompt in others:
                side.complete(prompt, 1)
                pass_tokens(STEPS_BETWEEN)
            steps = side.journal.read().steps
        finally:
            stop.set()
        for future in running:
            future.result()
    return steps
