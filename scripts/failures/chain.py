"""Prompts with their right answers, and whether they go the whole way: P, tier a, tier b, D."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deployment import counters
from deployment.answers import Answer, ask
from deployment.cases import PromptMaker
from deployment.counters import Counters
from deployment.http import Server
from deployment.ports import Ports
from deployment.readiness import wait_until
from deployment.reference import Expected
from deployment.supervision import wait_for
from deployment.traffic import Seen, follow
from environment.complaint import Complaint
from environment.progress import say

LENGTH: Final = 150
TOKENS: Final = 32
WRONG_ANSWER: Final = "wrong_answer"
"""Code of the complaint that must never be."""


class Chain:
    """Asks one deployment, whose reference (one vLLM alone) says what is right. Nobody else may ask D meanwhile."""

    def __init__(self, model: Path, model_name: str, ports: Ports) -> None:
        self._prompts = PromptMaker(model, model_name)
        self._ports = ports
        self._fresh = 0

    def fresh(self, length: int = LENGTH, tokens: int = TOKENS) -> Expected:
        """A prompt that nobody has seen, full pages and a tail, and the right answer. Raises HttpFailure."""
        self._fresh += 1
        case = self._prompts.completion(f"mole {self._fresh}", length)
        case = case._replace(body=case.body | {"max_tokens": tokens, "ignore_eos": True})
        return Expected(case, ask(Server(self._ports.reference), case))

    def whole(self, spares: list[Expected]) -> bool:
        """A new prompt is answered rightly, and D has every page from tier b, which has it from tier a.

        It is taken from `spares`, or made; one that was refused goes back there. Raises HttpFailure; Complaint: wrong answer.
        """
        expected = spares.pop() if spares else self.fresh()
        before = counters.read(self._ports)
        outcome = follow(Server(self._ports.router), expected, _hear)
        if outcome.seen is Seen.WRONG:
            raise Complaint(WRONG_ANSWER, outcome.text)
        if outcome.seen in (Seen.REFUSED, Seen.NO_ANSWER):
            spares.append(expected)
        if outcome.seen is not Seen.RIGHT:
            say(f"    not yet: {outcome.seen} {outcome.text}")
            return False
        return self._all_from_cache(before, expected)

    def only_at_tier_a(self) -> tuple[Expected, Answer]:
        """A prompt whose pages P has saved and nobody else has asked for, and P's first token. Raises HttpFailure, Complaint."""
        expected = self.fresh()
        before = counters.read(self._ports)
        first = ask(Server(self._ports.p), self._prompts.exact("P alone", list(expected.prompt_ids), max_tokens=1))
        saved = lambda: counters.read(self._ports).since(before).p_pages_saved >= expected.pages  # noqa: E731
        wait_until("P has saved a prompt", saved, 10)
        return expected, first

    def found(self, expected: Expected, first: Answer) -> bool:
        """D's leg as the router sends it, without a P: right, and nothing computed. Raises HttpFailure."""
        before = counters.read(self._ports)
        body = {"max_tokens": TOKENS - 1, "ignore_eos": True, "kv_transfer_params": {"pegaflow_expected": True}}
        rest = ask(Server(self._ports.d), self._prompts.exact("D alone", [*expected.prompt_ids, *first.ids], **body))
        if first.ids + rest.ids != expected.answer.ids:
            raise Complaint(WRONG_ANSWER, f"{first.ids + rest.ids} from what tier a had instead of {expected.answer.ids}")
        return self._all_from_cache(before, expected)

    def step(self) -> None:
        """Has both engines make a step, for a prompt of which there is no full page. Raises HttpFailure."""
        for port in (self._ports.p, self._ports.d):
            ask(Server(port), self._prompts.exact("step", [7], max_tokens=1))

    def _all_from_cache(self, before: Counters, expected: Expected) -> bool:
        """Whether one request on D since `before` had no position of its prompt computed and all of its pages fetched."""
        grown = counters.read(self._ports).since(before)

        def ended() -> bool:
            nonlocal grown
            grown = counters.read(self._ports).since(before)
            return grown.d_requests >= 1

        if wait_for(ended, 10) and grown.d_prompt_positions == 0 and grown.b_pages_fetched >= expected.pages:
            return True
        said = f"{grown.d_requests:.0f} requests ended at D, {grown.d_prompt_positions} positions computed there"
        say(f"    not yet: {said}, {grown.b_pages_fetched:.0f} of {expected.pages} pages fetched")
        return False


def _hear(_ids: Sequence[int]) -> bool:
    return True
