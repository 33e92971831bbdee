"""Asks the same prompts in each way, one request at a time, and reads the counters around each group."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from deployment import counters, metrics
from deployment.answers import Answer, ask, stream
from deployment.cases import Case, PromptMaker
from deployment.http import HttpFailure, Server
from deployment.plan import MODEL_NAME
from deployment.supervision import wait_for
from environment.checkout import MODEL
from environment.complaint import Complaint
from environment.progress import step

from .pace import Pace, pace
from .path import Way, after_own_cache
from .prompts import CHUNK, Prompt
from .score import Part, Reference, forwardable, unproven
from .site import Site

SETTLE_SECONDS: Final = 5.0
"""vLLM publishes statistics with the next step or within a second."""
CACHED: Final = "vllm:prompt_tokens_cached_total"
PACE_IDS: Final = (CHUNK + 1, 3 * CHUNK + 1)
PACE_TOKENS: Final = 16


def measured_pace(server: Server) -> Pace:
    """Of the plain vLLM, with two prompts of no other use. The first one of all only warms up."""
    prompts = PromptMaker(MODEL, MODEL_NAME)

    def seconds(topic: str, ids: int, tokens: int) -> float:
        case = prompts.completion(topic, ids)
        began = time.monotonic()
        ask(server, case._replace(body=case.body | {"max_tokens": tokens, "ignore_eos": True}))
        return time.monotonic() - began

    with step("measure how fast this machine is"):
        seconds("heron", PACE_IDS[0], 1)
        short, long = (seconds(f"bird {ids}", ids, 1) for ids in PACE_IDS)
        first, more = (seconds(f"bird {PACE_IDS[0]}", PACE_IDS[0], tokens) for tokens in (1, 1 + PACE_TOKENS))
    return pace((PACE_IDS[0], short), (PACE_IDS[1], long), max(0.0, more - first) / PACE_TOKENS)


def alone(server: Server, group: Sequence[Prompt], prompts: PromptMaker) -> tuple[list[Part], dict[str, Reference]]:
    """Each prompt twice, the second time from vLLM's own cache. Raises Complaint when that had not all full blocks."""
    found = {}
    with step(f"{len(group)} of {group[0].group}: one vLLM alone"):
        before = _cached(server)
        for prompt in group:
            case = _case(prompts, prompt)
            found[prompt.name] = Reference(stream(server, case), stream(server, case))
        wanted = sum(len(prompt.ids) - after_own_cache(len(prompt.ids)) for prompt in group)
        if not wait_for(lambda: _cached(server) - before >= wanted, SETTLE_SECONDS) or _cached(server) - before != wanted:
            raise Complaint(
                "wrong_hits",
                f"{group[0].group}: the plain vLLM had {_cached(server) - before:.0f} ids in its cache, not {wanted}",
            )
    parts = [
        Part(Way.DIRECT, group, [found[prompt.name].cold for prompt in group]),
        Part(Way.AGAIN, group, [found[prompt.name].again for prompt in group]),
    ]
    return parts, found


def answered(site: Site, way: Way, group: Sequence[Prompt], prompts: PromptMaker) -> Part:
    """One of the ways that need the deployment, which is in the state that it needs. A request that fails is a wrong answer.

    Raises HttpFailure when a service does not say its counters.
    """
    with step(f"{len(group)} of {group[0].group}: {way}"):
        before = counters.read(site.ports)
        if way is Way.REMOTE:
            # As the router marks it: what is on its way is waited for.
            more = {"kv_transfer_params": {"pegaflow_expected": True}}
            answers = [_heard(site.d, _case(prompts, prompt, **more)) for prompt in group]
        else:
            answers = [_heard(site.router, _case(prompts, prompt)) for prompt in group]
        replayed = frozenset(
            prompt.name
            for prompt, answer in zip(group, answers, strict=True)
            if way is not Way.REMOTE and answer.ids and not forwardable(prompts.text(answer.ids[0]))
        )
        return _settled(lambda: Part(way, group, answers, counters.read(site.ports).since(before), replayed))


def _heard(server: Server, case: Case) -> Answer:
    try:
        return stream(server, case)
    except HttpFailure as failure:
        return Answer((), (), f"no answer: {failure}", None, None)


def _settled(part: Callable[[], Part]) -> Part:
    """Once the counters show that the way was gone, or will not any more."""
    wait_for(lambda: not unproven(part()), SETTLE_SECONDS)
    return part()


def _case(prompts: PromptMaker, prompt: Prompt, **fields: object) -> Case:
    return prompts.exact(prompt.name, list(prompt.ids), max_tokens=prompt.tokens, ignore_eos=True, **fields)


def _cached(server: Server) -> float:
    return metrics.take(server).total(CACHED)
