"""A deployment with tiny engines on which scenarios are played, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

from deployment import counters, levels, metrics, tiny_model
from deployment import plan as planning
from deployment.answers import Answer, ask
from deployment.cases import PromptMaker
from deployment.counters import Counters
from deployment.http import HttpFailure, Server
from deployment.leftovers import held as requests_hold
from deployment.ports import Ports
from deployment.readiness import wait_all, wait_until
from deployment.reference import Expected
from deployment.supervision import SERVICES, Supervision, wait_for
from deployment.traffic import Outcome, Seen, Traffic, follow
from environment.complaint import Complaint
from failures.hold import Hold
from failures.result import Result
from failures.scenario import ENGINES, How, Phase, Scenario

BESIDE: Final = 6
"""Requests beside the one that is caught, three at a time."""
LENGTH: Final = 150
LONG: Final = 1900
"""Of a prompt that is caught in its prefill."""
TOKENS: Final = 32
MANY: Final = 200
"""Of an answer that is caught while it is decoded."""
TRIES: Final = 8
STANDS_SECONDS: Final = 4.0
"""How long a stopped victim stands still: longer than a node may be silent before it counts as dead."""
WHOLE_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0


class Stage:
    """Owns the deployment: a context manager. The reference is one vLLM alone; it says what is right."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        model = folder / "model"
        tiny_model.make(model)
        self._plan = planning.make(folder / "run", ports, model=model, model_name="tiny", pool_size="64MiB")
        self._supervision = Supervision(self._plan)
        self._ports = ports
        self._prompts = PromptMaker(model, "tiny")
        self._fresh = 0
        self._processes: dict[str, int] = {}
        self._common: list[Expected] = []

    def __enter__(self) -> Stage:
        try:
            self._supervision.start([*SERVICES, "reference"])
            wait_all(self._supervision, [*SERVICES, "reference"], self._ports)
            self._common = [self._expected() for _ in range(8)]
            if not self._whole([]):
                raise Complaint("not_whole", "a new prompt did not go its whole way before anything was hurt")
            self._processes = self._counts()
        except BaseException:
            self._supervision.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._supervision.stop()

    def play(self, scenario: Scenario) -> Result:
        """Everything is whole before, and after it unless the result says otherwise."""
        try:
            return self._play(scenario)
        except (Complaint, HttpFailure, LookupError) as error:
            return Result(scenario, failure=str(error))

    def _play(self, scenario: Scenario) -> Result:
        spares = [self._expected(), self._expected()]
        earlier, first = self._only_at_tier_a()
        router = Server(self._ports.router, ANSWER_SECONDS)
        beside = Traffic(router, self._common, BESIDE, clients=3)
        with Hold(scenario.phase, self._supervision, self._ports) as hold:
            probe = self._brought(scenario.phase, hold, router)
            beside.start()
            wait_until("others are under way", lambda: beside.done() > 0 or self._in_flight() > 1, ANSWER_SECONDS)
            with self._hurt(scenario, probe):
                hold.release()
        outcome = probe.wait()
        others = Counter(one.seen for one in beside.wait())
        began = time.monotonic()
        wait_all(self._supervision, SERVICES, self._ports)
        ready = time.monotonic()
        wait_until("a new prompt goes its whole way", lambda: self._whole(spares), WHOLE_SECONDS)
        whole = time.monotonic()
        return Result(scenario, outcome, others, ready - began, whole - ready, self._found(earlier, first), self._left())

    def _brought(self, phase: Phase, hold: Hold, router: Server) -> Probe:
        """A request in this phase. Some last a tenth of a second; one that is over before it is seen is followed by another.

        Raises Complaint.
        """
        for left in reversed(range(TRIES)):
            length = LONG if phase is Phase.PREFILLING else LENGTH
            probe = Probe(router, self._expected(length, MANY if phase is Phase.DECODING else TOKENS))
            try:
                hold.bring(probe.start)
                return probe
            except Complaint:
                hold.release()
                probe.wait()
                if not left:
                    raise
        raise AssertionError

    @contextmanager
    def _hurt(self, scenario: Scenario, probe: Probe) -> Iterator[None]:
        """The victim is dead, stopped or told to end when the body begins; at the end it goes on or was started again."""
        victim = scenario.victim
        if scenario.how is How.KILL:
            self._supervision.kill(victim, family=victim in ENGINES)
            yield
            return
        if scenario.how is How.STOP:
            pid = self._supervision.process(victim).pid
            os.kill(pid, signal.SIGSTOP)
            try:
                yield
                probe.ended(STANDS_SECONDS)
            finally:
                os.kill(pid, signal.SIGCONT)
            return
        with ThreadPoolExecutor(1) as beside:
            stopping = beside.submit(self._supervision.stop_one, victim)
            try:
                yield
            finally:
                stopping.result()
                self._supervision.start_one(victim)

    def _expected(self, length: int = LENGTH, tokens: int = TOKENS) -> Expected:
        """A prompt that nobody has seen, full pages and a tail, and the right answer."""
        self._fresh += 1
        case = self._prompts.completion(f"mole {self._fresh}", length)
        case = case._replace(body=case.body | {"max_tokens": tokens, "ignore_eos": True})
        return Expected(case, ask(Server(self._ports.reference), case))

    def _whole(self, spares: list[Expected]) -> bool:
        """A new prompt is answered rightly, and D has every page from tier b, which has it from tier a."""
        expected = spares.pop() if spares else self._expected()
        before = counters.read(self._ports)
        outcome = follow(Server(self._ports.router), expected, lambda ids: True)
        if outcome.seen is Seen.WRONG:
            raise Complaint("wrong_answer", outcome.text)
        return outcome.seen is Seen.RIGHT and self._all_from_cache(before, expected)

    def _all_from_cache(self, before: Counters, expected: Expected) -> bool:
        """Whether one request on D since `before` had no position of its prompt computed and all of its pages fetched."""
        if not wait_for(lambda: counters.read(self._ports).since(before).d_requests >= 1, 10):
            return False
        grown = counters.read(self._ports).since(before)
        return grown.d_prompt_positions == 0 and grown.b_pages_fetched >= expected.pages

    def _only_at_tier_a(self) -> tuple[Expected, Answer]:
        """A prompt whose pages P has saved and nobody else has asked for, and P's first token."""
        expected = self._expected()
        before = counters.read(self._ports)
        case = self._prompts.exact("P alone", list(expected.prompt_ids), max_tokens=1)
        first = ask(Server(self._ports.p), case)
        saved = lambda: counters.read(self._ports).since(before).p_pages_saved >= expected.pages  # noqa: E731
        wait_until("P has saved a prompt", saved, 10)
        return expected, first

    def _found(self, expected: Expected, first: Answer) -> bool:
        """D's leg as the router sends it, without a P: right, and nothing computed."""
        before = counters.read(self._ports)
        body = {"max_tokens": TOKENS - 1, "ignore_eos": True, "kv_transfer_params": {"pegaflow_expected": True}}
        case = self._prompts.exact("D alone", [*expected.prompt_ids, *first.ids], **body)
        rest = ask(Server(self._ports.d), case)
        return first.ids + rest.ids == expected.answer.ids and self._all_from_cache(before, expected)

    def _in_flight(self) -> float:
        return metrics.take(Server(self._ports.router)).total("pegaflow_router_in_flight_requests")

    def _counts(self) -> dict[str, int]:
        return {name: level.processes for name, level in levels.take(self._supervision).items()}

    def _left(self) -> dict[str, Any]:
        """What requests still hold, and services with more or fewer processes than at first; {} once there is nothing."""

        def left() -> dict[str, Any]:
            counts = self._counts()
            then = self._processes
            odd = {f"processes of {name}": counts.get(name, 0) for name in then if counts.get(name, 0) != then[name]}
            return {**requests_hold(self._ports), **odd}

        return {} if wait_for(lambda: not left(), 15) else left()


class Probe(Thread):
    """The request that is caught: one stream."""

    def __init__(self, server: Server, expected: Expected) -> None:
        super().__init__(name="probe")
        self._server, self._expected = server, expected
        self._ids: list[int] = []
        self._outcome: Outcome | None = None

    def start(self) -> Sequence[int]:  # type: ignore[override]
        """Returns the ids that have come, as they come."""
        super().start()
        return self._ids

    def run(self) -> None:
        def heard(ids: Sequence[int]) -> bool:
            self._ids[:] = ids
            return True

        self._outcome = follow(self._server, self._expected, heard)

    def ended(self, seconds: float) -> bool:
        """Waits at most so long for its end."""
        self.join(seconds)
        return not self.is_alive()

    def wait(self) -> Outcome:
        self.join()
        assert self._outcome is not None
        return self._outcome
