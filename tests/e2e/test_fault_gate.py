"""Real vLLM while its tier dies, stands still and is slow in each phase of a page's life, with twelve requests under way: every
answer is the one of a vLLM alone, none takes longer than the configured timeouts allow, and afterwards nobody holds anything."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import leftovers
import pytest
from cluster import Cluster, dump, until
from fault_control import FaultControl, state
from pegaflow.common.fault_points import Point

from .gate.engine import Engine, apart, transfer
from .gate.models import Tiny, make
from .gate.prompts import RandomIds
from .gate.script import LOADED
from .gate.served import EngineSpec

pytestmark = pytest.mark.timeout(600)

TOGETHER = 12
TRIES = 5
LENGTHS = (33, 64, 70, 97, 130, 40, 65, 96, 150, 34, 128, 100)
ANSWER = 12
WAIT_S, REQUEST_S = 2.0, 1.0
"""Configured: how long a lookup may wait for pages, and how long any other request to the tier."""
MARGINS_S = 3.0
"""What the connector puts on top of a lookup's wait: 1 s in the bus, and 2 s in the tracker, one of which is the bus's."""
NOISE = 5.0
"""An undisturbed round takes up to so many times longer on a machine that does something else, too."""
PAGE_GRANULES = 4  # 4 layers × 2 heads × 32 rows × 64 × 4 bytes

SAVE = (
    Point.TIER_INTENT_BEFORE_APPLIED,
    Point.TIER_GRANT_AFTER_TABLE,
    Point.CONNECTOR_SAVE_AFTER_COPY,
    Point.TIER_WRITTEN_BEFORE_APPLIED,
    Point.TIER_SEAL_AFTER_TABLE,
)
LOAD = (
    Point.TIER_LOOKUP_BEFORE_APPLIED,
    Point.TIER_HITS_BEFORE_SENT,
    Point.TIER_LOADING_BEFORE_APPLIED,
    Point.CONNECTOR_LOAD_BEFORE_COPY,
    Point.TIER_RELEASE_BEFORE_APPLIED,
)
FETCH = Point.TIER_PIN_BEFORE_SENT, Point.TIER_PINNED_BEFORE_SENT, Point.TIER_READ_AFTER_POST
ATTACH = (Point.TIER_ATTACHED_BEFORE_SENT,)
PHASES = {"save": SAVE, "load": LOAD, "fetch": FETCH, "attach": ATTACH}
SLOW = "delay=0.03"


def rounds() -> Iterator[tuple[str, str, Point]]:
    """(what is done, how the tier suffers, where); slow: at every visit."""
    for what, points in PHASES.items():
        for point in points:
            for how in ("kill", "stop", "slow"):
                yield what, how, point


@dataclass
class Gate:
    """Engine p at tier a, engine d at tier b; `right`: what one vLLM alone answers to each round's prompts."""

    control: FaultControl
    cluster: Cluster
    p: Engine
    d: Engine
    right: dict[str, list[tuple[int, ...]]]
    undisturbed: float = 0.0
    seconds: list[float] = field(default_factory=list)
    probes: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, engine: Engine, topic: str) -> None:
        """Twelve requests at once; each answer must be right."""
        began = time.monotonic()
        answers = engine.generate(prompts(topic), ANSWER)
        self.seconds.append(time.monotonic() - began)
        assert [answer.ids for answer in answers] == self.right[topic], topic

    def settle(self) -> None:
        """Starts what has died; then both engines are attached again, and nobody holds anything."""
        last: dict[str, object] = {}

        def clean() -> bool:
            last.clear()
            last.update(leftovers.of_metaserver(self.cluster))
            for node in "ab":
                last.update(leftovers.of_tier(self.cluster, node, PAGE_GRANULES))
            return not last

        for node, engine in (("a", self.p), ("b", self.d)):
            self._await_service(node, engine)
            engine.idle()
        try:
            until("nothing held", clean, 60)
        except AssertionError:
            raise AssertionError(f"still held: {last}") from None

    def _await_service(self, node: str, engine: Engine) -> None:
        """Until what this engine computes is saved at its tier."""

        def sealed() -> int:
            return int(dump(self.cluster.endpoint(node)).get("counts", {}).get("sealed", 0))

        def saves() -> bool:
            engine.generate([RandomIds().words(f"probe {next(self.probes)}", 33)], 1)
            engine.idle()
            return sealed() > before

        def ready() -> bool:
            self.revive()
            return dump(self.cluster.endpoint(node)).get("state") == "ready"

        until(f"tier {node}", ready)
        before = sealed()
        until(f"engine at {node} saves", saves, 60)

    def revive(self) -> None:
        for tier in self.cluster.tiers.values():
            if tier.process.poll() is not None:
                tier.start()

    def restart(self) -> None:
        tier = self.cluster.tiers["b"]
        tier.kill()
        tier.start()

    def suffer(self, how: str, point: Point, act: Callable[[], None]) -> None:
        """`act` while a tier suffers at `point`; if that is one of the engine's points, tier b suffers meanwhile."""
        name = str(point.value)
        tier = self.cluster.tiers["b"]
        if how == "slow":
            error = self.control.suffer(f"{name}@*:{SLOW}", act)
        elif not name.startswith("connector"):
            error = self.control.suffer(f"{name}:{how}", act, then=self.revive if how == "kill" else lambda: None)
        elif how == "kill":
            error = self.control.suffer(f"{name}:delay=0.3", act, then=self.restart)
        else:
            error = self.control.suffer(f"{name}:delay=0.3", act, then=lambda: tier.process.send_signal(signal.SIGSTOP))
            assert state(tier.process.pid) == "T", "the requests have ended while the tier stood still"
            tier.process.send_signal(signal.SIGCONT)
        if error is not None:
            raise error


def prompts(topic: str) -> list[list[int]]:
    return [RandomIds().words(f"{topic} {i}", length) for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("fault_gate")
    model = folder / "model"
    apart(make, Tiny.LLAMA, model)
    topics = [f"{what} {n}" for what in ("undisturbed", "at the end") for n in range(TRIES)]
    topics += [f"{what} {how} {point.value}" for what, how, point in rounds()]
    args = {"block_size": 32}
    with Engine(EngineSpec(model, args), folder / "alone.log") as alone:
        answers = iter(alone.generate([prompt for topic in topics for prompt in prompts(topic)], ANSWER))
    right = {topic: [next(answers).ids for _ in range(TOGETHER)] for topic in topics}
    runtime = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    runtime.mkdir(mode=0o700)
    with FaultControl(runtime) as control, Cluster(runtime) as cluster:
        cluster.wait_ready()

        def engine(node: str) -> Engine:
            options = transfer(cluster, node, wait_ms=int(WAIT_S * 1e3), request_timeout_ms=int(REQUEST_S * 1e3))
            return Engine(EngineSpec(model, args, options, control.environ), folder / f"{node}.log")

        with engine("a") as p, engine("b") as d:
            made = Gate(control, cluster, p, d, right)
            whole_way(made, "undisturbed")
            made.undisturbed = max(made.seconds)
            yield made


def whole_way(gate: Gate, topic: str) -> None:
    """Saved by p at a, fetched by d to b, loaded by d again.

    Where the machine is starved a grant may come too late, which costs a page: then other prompts have to go the whole way.
    """
    pages = sum(length // 32 for length in LENGTHS)
    # A prompt that ends with a block is loaded up to the block before: vLLM computes the last position.
    wanted = 2 * (pages - sum(length % 32 == 0 for length in LENGTHS))
    loaded: list[float] = []
    for n in range(TRIES):
        before = gate.d.idle().get(LOADED, 0.0)
        gate.ask(gate.p, f"{topic} {n}")
        gate.settle()
        gate.ask(gate.d, f"{topic} {n}")
        gate.settle()
        gate.d.reset()
        gate.ask(gate.d, f"{topic} {n}")
        gate.settle()
        loaded.append(gate.d.idle()[LOADED] - before)
        if loaded[-1] >= wanted:
            return
    raise AssertionError(f"pages loaded {loaded}, each time {wanted} were to be")


@pytest.mark.parametrize(("what", "how", "point"), list(rounds()), ids=lambda part: str(getattr(part, "value", part)))
def test_answers_stay_right_and_in_time(gate: Gate, what: str, how: str, point: Point) -> None:
    topic = f"{what} {how} {point.value}"
    d = gate.d
    if what == "load":
        gate.ask(d, topic)
        gate.settle()
    elif what == "fetch":
        gate.ask(gate.p, topic)
        gate.settle()
    elif what == "attach":
        gate.restart()

    def act() -> None:
        if what == "load":
            d.reset()
        gate.ask(d, topic)

    gate.suffer(how, point, act)
    bound = NOISE * gate.undisturbed + WAIT_S + MARGINS_S + REQUEST_S
    assert gate.seconds[-1] <= bound, "a request waited longer than the configured timeouts"
    gate.settle()


def test_afterwards_everything_goes_its_whole_way_again(gate: Gate) -> None:
    whole_way(gate, "at the end")
