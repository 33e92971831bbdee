"""A deployment with tiny engines on which scenarios are played, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from xmlrpc.client import Fault

from deployment import metrics, tiny_model
from deployment import plan as planning
from deployment.http import Server
from deployment.ports import Ports
from deployment.readiness import ENGINE_SECONDS, probes, wait_all, wait_ready, wait_until
from deployment.reference import Expected
from deployment.supervision import SERVICES, Supervision
from deployment.traffic import Outcome, Seen, Traffic
from environment.complaint import Complaint
from environment.progress import say
from failures.beside import REQUESTS, beside
from failures.chain import TOKENS, WRONG_ANSWER, Chain
from failures.hold import Hold, Missed
from failures.left import Left
from failures.probe import Probe
from failures.result import Result
from failures.scenario import ENGINES, How, Phase, Scenario
from failures.standstill import stands

LONG: Final = 1900
"""Of a prompt that is caught in its prefill."""
MANY: Final = 100
"""Of an answer that is caught while it is decoded."""
TRIES: Final = 4
STANDS_SECONDS: Final = 4.0
"""How long a stopped victim stands still, whatever the request does: longer than a node may be silent until it counts as dead."""
WHOLE_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
STARTED_SECONDS: Final = 60.0
KV_BYTES: Final = 64 << 20
"""Of each engine: 2 KiB a position. Three engines with a GiB each leave too little of a small machine."""


class Stage:
    """Owns the deployment: a context manager. The reference is one vLLM alone; it says what is right.

    Args:
        folder: for the model.
        run: for logs, in its folder `log`.
    """

    def __init__(self, folder: Path, run: Path, ports: Ports) -> None:
        model = folder / "model"
        tiny_model.make(model)
        engine = f"{planning.ENGINE_FLAGS} --kv-cache-memory-bytes {KV_BYTES}"
        self._plan = planning.make(run, ports, model=model, model_name="tiny", engine=engine, pool_size="64MiB")
        self._supervision = Supervision(self._plan)
        self._ports = ports
        self._chain = Chain(model, "tiny", ports)
        self._common: list[Expected] = []

    def __enter__(self) -> Stage:
        try:
            self._supervision.start([*SERVICES, "reference"])
            wait_all(self._supervision, [*SERVICES, "reference"], self._ports)
            self._common = [self._chain.fresh() for _ in range(8)]
            self._get_whole([])
            with self._traffic(None) as early:  # connections and threads that are kept are there before anybody counts
                pass
            _all_right(early.wait())
            self._chain.step()
            self._left = Left(self._plan, self._supervision, self._chain.step)
        except BaseException:
            self._supervision.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._supervision.stop()

    def play(self, scenario: Scenario) -> Result:
        """Everything has to be whole before it; :meth:`mend` sees to that afterwards."""
        try:
            try:
                return self._play(scenario)
            except Missed as missed:
                return Result(scenario, missed=str(missed), left=self._left())
        except Complaint as complaint:
            return Result(scenario, failure=str(complaint))
        except Exception as error:  # whatever it is, the scenario has failed and the others are to be played
            return Result(scenario, failure=f"error: {type(error).__name__}: {error}")

    def mend(self, result: Result) -> None:
        """What did not get whole by itself is started anew. Raises Complaint, HttpFailure, Fault."""
        if result.failure or result.left:
            say(f"    {'; '.join(result.faults())}")
            self._anew()

    def _play(self, scenario: Scenario) -> Result:
        victim = scenario.victim
        running = lambda: self._supervision.process(victim).state == "RUNNING"  # noqa: E731
        # One that ends before supervisord counts it as started is started again later and later, and then never.
        wait_until(f"supervisord counts {victim} as started", running, STARTED_SECONDS)
        spares = [self._chain.fresh(), self._chain.fresh()]
        earlier, first = self._chain.only_at_tier_a()
        others = self._traffic(scenario)
        with ExitStack() as ends, Hold(scenario.phase, self._supervision, self._ports) as hold:
            probe = self._brought(scenario.phase, hold)
            ends.callback(probe.wait)
            ends.enter_context(others)
            wait_until("others are under way", lambda: others.done() > 0 or self._in_flight() > 1, ANSWER_SECONDS)
            with self._hurt(scenario):
                hold.release()
            going_on = time.monotonic()
            ready = self._ready_at(victim)
            # Whoever was refused asks again: were nobody answered, this would not end.
            wait_until("those beside it were answered", lambda: others.done() >= REQUESTS, ANSWER_SECONDS)
        outcome, seen = probe.wait(), Counter(one.seen for one in others.wait())
        over = time.monotonic()
        self._get_whole(spares)
        whole = time.monotonic() - ready
        found, left = self._chain.found(earlier, first), self._left()
        return Result(scenario, outcome, seen, ready - going_on, max(0.0, over - ready), whole, found, left)

    def _brought(self, phase: Phase, hold: Hold) -> Probe:
        """A request in this phase; one that is over before it is seen is followed by another. Raises Missed."""
        for left in reversed(range(TRIES)):
            length = {"length": LONG} if phase is Phase.PREFILLING else {}
            expected = self._chain.fresh(tokens=MANY if phase is Phase.DECODING else TOKENS, **length)
            probe = Probe(Server(self._ports.router, ANSWER_SECONDS), expected)
            try:
                hold.bring(probe.start)
                return probe
            except Missed as missed:
                hold.release()
                if (outcome := probe.wait()).seen is not Seen.RIGHT:
                    code = WRONG_ANSWER if outcome.seen is Seen.WRONG else "not_answered"
                    raise Complaint(code, f"{outcome.seen} though nobody was hurt: {outcome.text}") from None
                say(f"    {missed}; {left} more tries")
                if not left:
                    raise
        raise AssertionError

    @contextmanager
    def _hurt(self, scenario: Scenario) -> Iterator[None]:
        """The victim is dead, stopped or told to end when the body begins; at the end it goes on or was started again."""
        victim = scenario.victim
        before = self._supervision.process(victim).pid
        if scenario.how is How.KILL:
            self._supervision.kill(victim, family=victim in ENGINES)
            self._must("is dead", self._supervision.process(victim).pid != before, victim)
            yield
            return
        if scenario.how is How.STOP:
            send = os.killpg if victim in ENGINES else os.kill
            send(before, signal.SIGSTOP)
            try:
                yield
                send(before, signal.SIGSTOP)  # the one that was held stands with the others
                time.sleep(STANDS_SECONDS)  # the fault itself: others have to notice
                self._must("stands still", stands(before), victim)
            finally:
                send(before, signal.SIGCONT)
            return
        with ThreadPoolExecutor(1) as executor:
            stopping = executor.submit(self._supervision.stop_one, victim)
            try:
                told = lambda: stopping.done() or self._supervision.process(victim).state != "RUNNING"  # noqa: E731
                wait_until(f"{victim} was told to end", told, STARTED_SECONDS)
                yield
            finally:
                stopping.result()
                self._supervision.start_one(victim)
        self._must("was started again", self._supervision.process(victim).pid != before, victim)

    @staticmethod
    def _must(what: str, so: bool, victim: str) -> None:
        """A victim that nobody hurt would make every scenario a good one."""
        if not so:
            raise Complaint("not_hurt", f"it cannot be seen that {victim} {what}")

    def _traffic(self, scenario: Scenario | None) -> Traffic:
        """Prompts that nobody has seen, and some that everybody has."""
        prompts = [*(self._chain.fresh() for _ in range(REQUESTS // 2)), *self._common]
        return beside(Server(self._ports.router, ANSWER_SECONDS), prompts, scenario)

    def _ready_at(self, victim: str) -> float:
        """When everybody said to be ready, the victim first. Raises Complaint."""
        asked = probes(self._ports)
        wait_ready(self._supervision, asked[victim])
        ready = lambda: all(asked[name].server.status(asked[name].path)[0] == 200 for name in SERVICES)  # noqa: E731
        wait_until("everybody is ready", ready, ENGINE_SECONDS)
        return time.monotonic()

    def _get_whole(self, spares: list[Expected]) -> None:
        """Returns when a new prompt has gone its whole way. Raises Complaint, HttpFailure."""
        wait_until("a new prompt goes its whole way", lambda: self._chain.whole(spares), WHOLE_SECONDS)

    def _in_flight(self) -> float:
        return metrics.take(Server(self._ports.router)).total("pegaflow_router_in_flight_requests")

    def _anew(self) -> None:
        """Stops and starts everybody but the reference, so that the next scenario does not suffer from this one."""
        say("    starting everybody anew")
        for name in SERVICES:
            if pid := self._supervision.process(name).pid:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGCONT)
            with suppress(Fault):  # it does not run
                self._supervision.stop_one(name)
            with suppress(Fault):  # it does: supervisord was faster
                self._supervision.start_one(name)
        wait_all(self._supervision, SERVICES, self._ports)
        self._get_whole([])


def _all_right(outcomes: list[Outcome]) -> None:
    """Raises Complaint for answers in peace that were not right."""
    for outcome in outcomes:
        if outcome.seen not in (Seen.RIGHT, Seen.LEFT):
            code = WRONG_ANSWER if outcome.seen is Seen.WRONG else "not_answered"
            raise Complaint(code, f"{outcome.seen} before anybody was hurt: {outcome.text}")
