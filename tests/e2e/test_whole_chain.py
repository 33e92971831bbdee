"""Real vLLMs, tiers, metaserver and router under supervisord: the proof of the README, and deaths in mid-answer."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from deployment import counters, metrics
from deployment.answers import Answer, ask
from deployment.cases import Case
from deployment.http import HttpFailure, Server
from deployment.leftovers import held
from deployment.proof import Proof
from deployment.readiness import probes, wait_ready, wait_until
from deployment.reference import Expected

from .conftest import Deployment

LENGTHS = (5, 31, 33, 64, 90, 130, 130, 200, 257, 300)
TOGETHER = 12
FAULTS = (
    ("tier-a", "kill"),
    ("tier-b", "stop"),
    ("metaserver", "kill"),
    ("tier-a", "stop"),
    ("tier-b", "kill"),
    ("metaserver", "stop"),
    ("tier-a", "kill"),
)

LONG = 240
"""Ids of an answer that something dies in: several seconds of decoding."""

pytestmark = pytest.mark.timeout(1500)  # the first test starts the deployment; a vLLM that was killed takes a minute


def test_the_proof_holds(deployment: Deployment) -> None:
    figures = Proof(deployment.supervision, deployment.plan.ports, deployment.references, deployment.prompts).run()
    assert figures.failures == []
    assert figures.cases == figures.identical >= 2 * len(deployment.references.plain)
    assert figures.decode_prompt_positions_computed == 0
    assert figures.holds
    no_leftovers(deployment)


def test_router_killed_in_mid_answer(deployment: Deployment) -> None:
    expected = long_answer(deployment)
    cut = broken_off(deployment, expected, "router")
    assert cut.ids == expected.answer.ids[: len(cut.ids)]
    assert cut.failure is not None  # nobody is left who could have ended the answer
    wait_ready(deployment.supervision, probes(deployment.plan.ports)["router"])
    assert right(ask(deployment.router, expected.case), expected)
    no_leftovers(deployment)


def test_decode_engine_killed_in_mid_answer(deployment: Deployment) -> None:
    expected = long_answer(deployment)
    cut = broken_off(deployment, expected, "vllm-d")
    assert cut.ids == expected.answer.ids[: len(cut.ids)]
    # The only decode engine is gone: an error frame that says so, never a clean end and never a wrong token.
    assert cut.failure is not None and "pd_decode_interrupted" in str(cut.failure)
    back(deployment, "vllm-d")
    assert right(ask(deployment.router, expected.case), expected)
    # Its own cache died with it: what it has now, it has from the tier.
    d = counters.read(deployment.plan.ports)
    assert (d.d_prompt_positions, d.d_requests) == (0, 1)
    assert d.d_pages_loaded >= expected.pages
    no_leftovers(deployment)


def test_prefill_engine_killed_and_finds_its_pages_again(deployment: Deployment) -> None:
    expected = longest(deployment)
    deployment.supervision.kill("vllm-p", family=True)
    with pytest.raises(HttpFailure) as refused:
        ask(deployment.router, expected.case)
    assert refused.value.status in (502, 503, 504)
    back(deployment, "vllm-p")
    assert right(ask(deployment.router, expected.case), expected)
    p = metrics.take(Server(deployment.plan.ports.p))
    full_pages = len(expected.prompt_ids) // 32
    assert p.total("pegaflow_pages_loaded_total") >= full_pages - 1
    no_leftovers(deployment)


def test_decode_nodes_tier_killed_in_mid_answer_and_its_pool_lost(deployment: Deployment) -> None:
    expected = long_answer(deployment)
    deployment.supervision.forget_pool("b")
    cut = broken_off(deployment, expected, "tier-b")
    # D has the pages in its own blocks by then: it goes on as if nothing had happened.
    assert (cut.failure, cut.ids) == (None, expected.answer.ids)
    ports, short = deployment.plan.ports, longest(deployment)  # of a short answer there are many within the time
    wait_ready(deployment.supervision, probes(ports)["tier-b"])

    def loads_again() -> bool:
        before = counters.read(ports)
        assert right(ask(deployment.router, short.case), short)
        wait_until("D has counted it", lambda: counters.read(ports).since(before).d_requests == 1, 60)
        return counters.read(ports).since(before).d_prompt_positions == 0

    # D's processes attach one by one; until then D computes, which is right as well.
    wait_until("D loads again", loads_again, 90)
    no_leftovers(deployment)


def test_p_says_whether_its_tier_has_the_prompt(deployment: Deployment) -> None:
    """Else D would wait for pages that nobody has, with every request, for as long as P's tier is away."""
    ports, made = deployment.plan.ports, itertools.count()

    def saved() -> bool:
        case = deployment.prompts.completion(f"mooring {next(made)}", 70)
        body = case.body | {"max_tokens": 1, "kv_transfer_params": {"pegaflow_ask_saved": True}}
        told: bool = Server(ports.p).post(case.path, body)["kv_transfer_params"]["pegaflow_saved"]
        return told

    wait_until("P saves", saved, 60)
    deployment.supervision.stop_one("tier-a")
    try:
        wait_until("P has noticed that its tier is gone", lambda: not saved(), 60)
        case = deployment.prompts.completion(f"mooring {next(made)}", 70)
        assert ask(deployment.router, case).ids == ask(Server(ports.p), case).ids
    finally:
        deployment.supervision.start_one("tier-a")
    wait_ready(deployment.supervision, probes(ports)["tier-a"])
    wait_until("P saves again", saved, 60)
    no_leftovers(deployment)


def test_faults_while_requests_run(deployment: Deployment) -> None:
    """Twelve requests at a time; tiers and metaserver are killed and stopped between them. A client sees right answers only."""
    cases = [deployment.prompts.completion(f"harbour {i % 4}", length) for i, length in enumerate(LENGTHS)]
    engine = Server(deployment.plan.ports.p)
    right_ids = {case.name: ask(engine, case).ids for case in cases}
    done: list[str] = []

    def one(case: Case) -> None:
        assert ask(deployment.router, case).ids == right_ids[case.name], case.name
        done.append(case.name)

    with ThreadPoolExecutor(TOGETHER) as clients:
        answers = [clients.submit(one, cases[i % len(cases)]) for i in range(len(cases) * 6)]

        def progress(count: int) -> Callable[[], bool]:
            target = min(len(done) + count, len(answers))
            return lambda: len(done) >= target or any(answer.done() and answer.exception() for answer in answers)

        for victim, how in FAULTS:
            wait_until("a few more are answered", progress(4), 120)
            if how == "kill":
                deployment.supervision.kill(victim)
                continue
            wait_ready(deployment.supervision, probes(deployment.plan.ports)[victim])  # it may have been killed before
            pid = deployment.supervision.process(victim).pid
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_until(f"requests are answered although {victim} stands still", progress(2), 120)
            finally:
                os.kill(pid, signal.SIGCONT)
        for answer in answers:
            answer.result()
    known = probes(deployment.plan.ports)
    for victim in dict.fromkeys(victim for victim, _ in FAULTS):
        wait_ready(deployment.supervision, known[victim])  # the last one may still be on its way back
    no_leftovers(deployment)


class Cut(NamedTuple):
    """What a client had of a stream in which something died; `failure` is None when it ended cleanly all the same."""

    ids: tuple[int, ...]
    failure: HttpFailure | None


def broken_off(deployment: Deployment, expected: Expected, victim: str) -> Cut:
    """Streams `expected` and kills `victim` once decoding has begun."""
    ids: list[int] = []
    killed = False
    try:
        for _, event in deployment.router.stream(expected.case.path, expected.case.body):
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
            if len(ids) >= 3 and not killed:
                deployment.supervision.kill(victim, family=True)
                killed = True
    except HttpFailure as failure:
        return Cut(tuple(ids), failure)
    assert killed, "the answer was over before anything could be killed"
    return Cut(tuple(ids), None)


def back(deployment: Deployment, engine: str) -> None:
    """The engine answers again, and the router has noticed."""
    known = probes(deployment.plan.ports)
    wait_ready(deployment.supervision, known[engine])
    wait_ready(deployment.supervision, known["router"])


def longest(deployment: Deployment) -> Expected:
    """Of the prompts with a tail."""
    return max((one for one in deployment.references.plain if one.has_tail), key=lambda one: len(one.prompt_ids))


def long_answer(deployment: Deployment) -> Expected:
    """The longest prompt again with an answer of LONG ids, so that its middle is long enough to kill something in it.

    What is right was said by this deployment, undisturbed; its first ids are those of one vLLM alone.
    """
    expected = longest(deployment)
    case = expected.case._replace(body=expected.case.body | {"max_tokens": LONG, "ignore_eos": True})
    answer = ask(deployment.router, case)
    assert answer.ids[: len(expected.answer.ids)] == expected.answer.ids
    assert len(answer.ids) == LONG
    return expected._replace(case=case, answer=answer)


def right(answer: Answer, expected: Expected) -> bool:
    return (answer.ids, answer.text) == (expected.answer.ids, expected.answer.text)


def no_leftovers(deployment: Deployment) -> None:
    """Nothing that a finished request held is still held, at either tier or the router."""
    wait_until("nothing is held any more", lambda: not held(deployment.plan.ports), 15)
