"""Thousands of requests with faults among them: answers stay right, and afterwards everything uses what it used before.

    PEGAFLOW_SOAK=20000 pytest tests/e2e/test_soak.py      that many; without it as many as CI has time for

From 10,000 on engines are killed too.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment import levels, tiny_model
from deployment import plan as planning
from deployment.answers import ask
from deployment.cases import PromptMaker
from deployment.http import Server
from deployment.leftovers import files, held
from deployment.levels import Level
from deployment.plan import Plan
from deployment.ports import from_system
from deployment.readiness import probes, wait_all, wait_ready, wait_until
from deployment.reference import Expected
from deployment.supervision import SERVICES, Supervision
from deployment.traffic import Outcome, Seen, Traffic
from environment.progress import say

REQUESTS = int(os.environ.get("PEGAFLOW_SOAK", "1000"))
LONG = 10_000
CASES = 60
MAX_TOKENS = 6
POOL = "16MiB"
"""Less than the pages of all cases: pages are evicted all the time."""
FAULTS = (
    ("tier-a", "kill"),
    ("tier-b", "stop"),
    ("metaserver", "kill"),
    ("router", "stop"),
    ("tier-b", "kill"),
    ("metaserver", "stop"),
    ("tier-a", "stop"),
    ("router", "kill"),
)
OF_ENGINES = (("vllm-d", "kill"), ("vllm-p", "kill"))
MEMORY_SLACK_KIB = 16 * 1024
FILES_SLACK = 2 * 16
"""Connections that are kept for a while: of each of the clients at a time one to P and one to D."""
THREADS_SLACK = 4
"""Thread pools make their threads when there is work for one more."""

pytestmark = pytest.mark.timeout(600 + REQUESTS)


class Soak:
    """A deployment with tiny engines, and what its clients saw."""

    def __init__(self, folder: Path) -> None:
        model = folder / "model"
        tiny_model.make(model)
        self.plan: Plan = planning.make(folder / "run", from_system(), model=model, model_name="tiny", pool_size=POOL)
        self.supervision = Supervision(self.plan)
        self.seen: Counter[Seen] = Counter()

    def start(self) -> None:
        self.supervision.start()
        wait_all(self.supervision, SERVICES, self.plan.ports)
        prompts = PromptMaker(self.plan.model, self.plan.model_name)
        cases = [prompts.completion(f"quay {i}", 20 + i * 37 % 400) for i in range(CASES)]
        short = [case._replace(body=case.body | {"max_tokens": MAX_TOKENS, "ignore_eos": True}) for case in cases]
        self.expected = [Expected(case, ask(Server(self.plan.ports.p), case)) for case in short]

    def traffic(self, count: int) -> Traffic:
        return Traffic(Server(self.plan.ports.router), self.expected, count, seed=count)

    def judge(self, outcomes: list[Outcome], allowed: set[Seen]) -> None:
        self.seen += Counter(outcome.seen for outcome in outcomes)
        assert [outcome for outcome in outcomes if outcome.seen not in allowed] == []

    def undisturbed(self, count: int) -> dict[str, Level]:
        """What everybody uses after `count` requests in peace, when nothing is held any more."""
        with self.traffic(count) as traffic:
            pass
        self.judge(traffic.wait(), {Seen.RIGHT, Seen.LEFT})
        wait_until("nothing is held any more", lambda: not held(self.plan.ports), 30)
        return levels.take(self.supervision)

    def hurt(self, victim: str, how: str, traffic: Traffic, progress: int) -> None:
        """`stop`: until `progress` requests have ended, or a while if they cannot."""
        if how == "kill":
            self.supervision.kill(victim, family=victim.startswith("vllm"))
            wait_ready(self.supervision, probes(self.plan.ports)[victim])
            return
        wait_ready(self.supervision, probes(self.plan.ports)[victim])  # else there may be no process yet
        pid = self.supervision.process(victim).pid
        target = traffic.done() + progress
        os.kill(pid, signal.SIGSTOP)
        try:
            if victim != "router":
                wait_until(f"requests end while {victim} stands still", lambda: traffic.done() >= target, 60)
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    made = Soak(tmp_path_factory.mktemp("soak"))
    try:
        made.start()
        yield made
    finally:
        made.supervision.stop()


def test_nothing_grows(soak: Soak) -> None:
    peace = max(REQUESTS // 5, 200)
    before, known = soak.undisturbed(peace), files(soak.plan)
    faults = FAULTS + (OF_ENGINES if REQUESTS >= LONG else ())
    count = REQUESTS - 2 * peace
    with soak.traffic(count) as traffic:
        rounds = max(1, count // 2000)
        step = count // (rounds * len(faults) + 1)
        for i in range(rounds * len(faults)):
            wait_until(f"{(i + 1) * step} requests have ended", lambda i=i: traffic.done() >= (i + 1) * step, 600)  # type: ignore[misc]
            soak.hurt(*faults[i % len(faults)], traffic, 4)
    soak.judge(traffic.wait(), set(Seen) - {Seen.WRONG, Seen.UNCLEAN})
    wait_all(soak.supervision, SERVICES, soak.plan.ports)
    after = soak.undisturbed(peace)
    for name in SERVICES:
        say(f"    {name:10} before {before[name]}\n{'':14} after  {after[name]}")
    say(f"    clients saw {dict(soak.seen)}")
    assert soak.seen[Seen.RIGHT] > REQUESTS // 2
    assert files(soak.plan) == known
    for name, then in before.items():
        now = after[name]
        assert now.processes == then.processes, name
        assert now.threads <= then.threads + THREADS_SLACK, name
        assert now.files <= then.files + FILES_SLACK, name
        assert now.anonymous_kib <= then.anonymous_kib * 1.1 + MEMORY_SLACK_KIB, name
