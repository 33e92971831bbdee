"""What is asked of an engine with any store, and the proof that what came again came from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from engines.account import compute_cpu
from engines.found import Run, Twice
from engines.load import Prompts, first_token, without_hits
from engines.side import REJOIN_S, Side, SideFailed

from deployment import metrics
from deployment.http import HttpFailure

CHUNK: Final = 256
"""The most ids of a prompt's end that a store may leave to the engine (LMCache keeps whole chunks of so many)."""
BLOCK: Final = 32
ANSWER: Final = 8
NEAR: Final = 1e-3
"""By which the logarithm of a token's probability may differ: the shapes that are computed do, and with them the rounding."""
COUNTED_S: Final = 5.0


class Late(SideFailed):
    """What came again was not all saved yet: nothing is wrong, but what was measured there says nothing."""


class Sources(NamedTuple):
    """Where positions of prompts came from so far, as vLLM counts."""

    store: float
    engine: float
    computed: float

    @classmethod
    def of(cls, side: Side) -> Sources:
        names = ("external_kv_transfer", "local_cache_hit", "local_compute")
        taken = metrics.take(side.server)
        return cls(*(taken.total("vllm:prompt_tokens_by_source_total", source=name) for name in names))

    def since(self, before: Sources) -> Sources:
        return Sources(*(now - then for now, then in zip(self, before, strict=True)))


def awake(side: Side, prompts: Prompts) -> None:
    """Returns once its store serves it again after both were held. Raises SideFailed when that does not come."""
    deadline = time.monotonic() + REJOIN_S
    said = "no hit"
    while time.monotonic() < deadline:
        prompt = prompts.fresh(CHUNK + BLOCK)
        try:
            side.complete(prompt, 1)
            side.forget_local()
            before = Sources.of(side)
            side.complete(prompt, 1)
            if not side.with_connector or _counted(side, before, len(prompt)).store >= CHUNK:
                return
        except HttpFailure as failure:  # what was under way when it was stopped may time out
            said = str(failure)
    raise SideFailed(f"{side.name}: its store does not serve it again after both were held: {said}")


def check_answers(side: Side, prompt: list[int]) -> None:
    """Raises Late, and SideFailed when what comes from the store does not lead to the answer that was computed.

    Without a store it comes from the engine's own cache.
    """
    tokens, scores = side.scored(prompt, ANSWER)
    if side.with_connector:
        side.forget_local()
    before = Sources.of(side)
    again, scores_again = side.scored(prompt, ANSWER)
    _check(side, _counted(side, before, len(prompt)), len(prompt))
    apart = max(abs(one - other) for one, other in zip(scores, scores_again, strict=True))
    if again != tokens or apart > NEAR:
        raise SideFailed(
            f"{side.name}: {len(prompt)} ids were answered with {again} (scores {apart:.2g} apart), before with {tokens}"
        )


def ask_twice(side: Side, prompt: list[int]) -> Twice:
    """Raises Late or SideFailed when the second time is not served by the store (without one: by the engine's own cache)."""
    cold = first_token(side, prompt)
    if side.with_connector:
        side.forget_local()
    before, loaded = Sources.of(side), side.loaded()
    warm = first_token(side, prompt)
    came = _counted(side, before, len(prompt))
    _check(side, came, len(prompt))
    if loaded is not None:
        _until(lambda: (side.loaded() or 0.0) > loaded, f"{side.name}: what its store says it loaded did not grow")
    return Twice(len(prompt), cold.ms, warm.ms, int(came.computed), warm.stages)


def no_hit(side: Side, wanted: Sequence[list[int]], answer: int, at_once: int) -> Run:
    """`wanted`: prompts of more than CHUNK ids that nobody has seen. Raises SideFailed for a hit, Late when not all was saved."""
    run = without_hits(side, wanted, answer, at_once)
    if run.hits:
        raise SideFailed(f"{side.name}: {run.hits:.0f} hits in a workload without hits")
    side.forget_local()
    for prompt in (wanted[0], wanted[-1]) if side.with_connector else ():
        before = Sources.of(side)
        side.complete(prompt, 1)
        _check(side, _counted(side, before, len(prompt)), len(prompt))
    side.forget_local()
    return Run(run.rate, run.tokens / compute_cpu(run), run.tokens / run.cpu_seconds)


def _check(side: Side, came: Sources, ids: int) -> None:
    source, other = (came.store, came.engine) if side.with_connector else (came.engine, came.store)
    if other or (source < ids - CHUNK and not side.with_connector):
        raise SideFailed(f"{side.name}: of {ids} ids that it had seen: {came}")
    if source < ids - CHUNK:
        raise Late(f"{side.name}: of {ids} ids that it had seen its store had not saved enough: {came}")


def _counted(side: Side, before: Sources, ids: int) -> Sources:
    """What was counted since, once it is all of `ids`: vLLM counts shortly after it answers."""
    _until(lambda: sum(Sources.of(side).since(before)) >= ids, f"{side.name}: vLLM did not count {ids} positions")
    return Sources.of(side).since(before)


def _until(check: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + COUNTED_S
    while not check():
        if time.monotonic() > deadline:
            raise SideFailed(otherwise)
        time.sleep(0.01)
