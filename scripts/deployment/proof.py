"""The proof: what a deployment has to show, from answers and counters, with processes killed on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from deployment import counters
from deployment.answers import Answer, ask, stream
from deployment.cases import BLOCK_SIZE, Case, PromptMaker
from deployment.counters import Counters
from deployment.engine import saves
from deployment.figures import Figures, spread
from deployment.http import HttpFailure, Server
from deployment.ports import Ports
from deployment.readiness import probes, wait_ready, wait_until
from deployment.reference import Expected, References
from deployment.supervision import Supervision, wait_for
from environment.progress import say, step

SETTLE_SECONDS: Final = 5.0
"""Saves and counters run behind the answer; vLLM publishes statistics with the next step or within a second."""
REATTACH_SECONDS: Final = 15.0

Send = Callable[[Server, Case], Answer]


class Proof:
    """Runs the phases against a ready deployment; `figures` holds what was found."""

    def __init__(self, supervision: Supervision, ports: Ports, references: References, prompts: PromptMaker) -> None:
        self.figures = Figures()
        self._supervision = supervision
        self._ports = ports
        self._references = references
        self._prompts = prompts
        self._router = Server(ports.router)
        self._p, self._d = Server(ports.p), Server(ports.d)
        self._grown = Counters(*(0.0 for _ in Counters._fields))
        self._ttft: list[float] = []
        self._handoffs: list[float] = []
        self._probes = 0

    def run(self) -> Figures:
        """Raises Complaint when a service does not come back, never for a wrong answer: that is a failed claim."""
        self._cold()
        self._warm()
        self._metaserver_dies()
        self._tier_restarts()
        self._tier_dies()
        self._sum_up()
        return self.figures

    def _cold(self) -> None:
        """Each prompt for the first time: everything that D has must have come from P, each tail among it."""
        plain = self._references.plain
        with step(f"{len(plain)} prompts, streamed, never seen before"):
            grown = self._measured(lambda: self._compare_all(plain, stream, "cold"))
        tails = sum(expected.has_tail for expected in plain)
        self.figures.tails_expected = tails
        pages = sum(expected.pages for expected in plain if expected.case.path == "/v1/completions")
        claim = self.figures.claim
        claim(grown.d_tails_loaded == tails, f"cold: {grown.d_tails_loaded:.0f} tails loaded on D, expected {tails}")
        for name, value in [
            ("saved by P", grown.p_pages_saved),
            ("fetched", grown.b_pages_fetched),
            ("loaded on D", grown.d_pages_loaded),
        ]:
            claim(value >= pages, f"cold: {value:.0f} pages {name}, expected at least {pages}")

    def _warm(self) -> None:
        """The same prompts again, in one piece: caches of vLLM and of the tiers take part now."""
        plain = self._references.plain
        with step(f"the same {len(plain)} prompts, in one piece, again"):
            self._measured(lambda: self._compare_all(plain, ask, "warm"))

    def _metaserver_dies(self) -> None:
        """Pages that only tier a has are found through a metaserver that was not there when they were saved."""
        fresh = self._references.metaserver
        with step(f"{len(fresh)} prompts to P alone: only tier a gets their pages"):
            first = [self._prefill(expected) for expected in fresh]
        before = len(self.figures.failures)
        with step("kill -9 the metaserver"):
            self._supervision.kill("metaserver")
        # D may have to compute while nobody can tell where pages are: only the answer counts.
        with step("one request without a metaserver"):
            self._compare(self._references.outage, ask, "metaserver down")
        wait_ready(self._supervision, probes(self._ports)["metaserver"])
        with step("the same prompts to D alone: a fresh lookup has to find them at tier a"):
            grown = self._measured(lambda: self._decode_all(fresh, first))
        pages = sum(expected.pages for expected in fresh)
        self.figures.claim(
            grown.b_pages_fetched >= pages, f"metaserver: {grown.b_pages_fetched:.0f} pages fetched, expected {pages}"
        )
        with step("earlier prompts through the router"):
            self._measured(lambda: self._compare_all(self._references.plain[-6:], ask, "metaserver back"))
        self.figures.metaserver_recovered = len(self.figures.failures) == before

    def _tier_restarts(self) -> None:
        """Pages that only tier a has outlive it: its next life serves them, and P has no part in it."""
        fresh = self._references.restart
        with step(f"{len(fresh)} prompts to P alone, then kill -9 tier a"):
            first = [self._prefill(expected) for expected in fresh]
            self._supervision.kill("tier-a")
        before = len(self.figures.failures)
        wait_ready(self._supervision, probes(self._ports)["tier-a"])
        with step("the same prompts to D alone: tier a has to have their pages still"):
            grown = self._measured(lambda: self._decode_all(fresh, first))
        pages = sum(expected.pages for expected in fresh)
        claim = self.figures.claim
        claim(grown.b_pages_fetched >= pages, f"tier a restarted: {grown.b_pages_fetched:.0f} pages fetched, expected {pages}")
        claim(grown.p_pages_saved == 0, f"tier a restarted: P saved {grown.p_pages_saved:.0f} pages again")
        self.figures.tier_restarted = len(self.figures.failures) == before
        wait_until("P saves into tier a again", self._saves_into_tier_a, REATTACH_SECONDS)

    def _tier_dies(self) -> None:
        """P still has the pages in its own prefix cache, tier a has lost its pool: P has to save them again."""
        fresh = self._references.tier
        repeated = [*fresh, *self._references.plain[:10]]
        with step(f"{len(fresh)} prompts to P alone, then kill -9 tier a and lose its pool"):
            for expected in fresh:
                self._prefill(expected)
            self._supervision.forget_pool("a")
            self._supervision.kill("tier-a")
        before = len(self.figures.failures)
        wait_ready(self._supervision, probes(self._ports)["tier-a"])
        wait_until("P saves into tier a again", self._saves_into_tier_a, REATTACH_SECONDS)
        held = counters.pages_held(self._ports.tier_a_health)
        with step(f"{len(repeated)} prompts that P knows, through the router"):
            grown = self._measured(lambda: self._compare_all(repeated, ask, "tier a back"))
        pages = sum(expected.pages for expected in repeated)
        refilled = counters.pages_held(self._ports.tier_a_health) - held
        claim = self.figures.claim
        claim(refilled >= pages, f"tier a back: {refilled:.0f} pages in it again, expected {pages}")
        new = sum(expected.pages for expected in fresh)
        claim(grown.b_pages_fetched >= new, f"tier a back: {grown.b_pages_fetched:.0f} pages fetched from it, expected {new}")
        self.figures.tier_healed = len(self.figures.failures) == before

    def _sum_up(self) -> None:
        grown, figures = self._grown, self.figures
        figures.decode_prompt_positions_computed = grown.d_prompt_positions
        figures.decode_requests = round(grown.d_requests)
        figures.pages_saved = round(grown.p_pages_saved)
        figures.pages_fetched = round(grown.b_pages_fetched)
        figures.pages_loaded = round(grown.d_pages_loaded)
        figures.tails_loaded = round(grown.d_tails_loaded)
        figures.ttft_ms, figures.handoff_ms = spread(self._ttft), spread(self._handoffs)
        figures.claim(bool(self._handoffs), "the router measured no handoff")
        figures.claim(
            figures.identical == figures.cases, f"{figures.cases - figures.identical} of {figures.cases} answers differ"
        )

    # One phase: what was asked, and what the counters say about it.

    def _measured(self, work: Callable[[], int]) -> Counters:
        """Run `work`, which returns how many requests D had to serve, and check that D prefilled none of them."""
        before = counters.read(self._ports)
        requests = work()
        # vLLM counts a request when it has ended; a phase is over when D has counted all of its requests.
        wait_for(lambda: counters.read(self._ports).since(before).d_requests >= requests, SETTLE_SECONDS)
        wait_for(lambda: counters.read(self._ports).since(before).d_positions >= requests, SETTLE_SECONDS)
        grown = counters.read(self._ports).since(before)
        claim = self.figures.claim
        claim(grown.d_requests == requests, f"D counted {grown.d_requests:.0f} requests, expected {requests}")
        claim(grown.replays == 0, f"the router replayed {grown.replays:.0f} requests in place of splicing them")
        claim(grown.d_positions > 0, "the connector on D counted no position: its counter does not work")
        claim(grown.d_prompt_positions == 0, f"D computed {grown.d_prompt_positions} prompt positions itself")
        claim(
            grown.d_vllm_computed == grown.d_requests,
            f"vLLM on D computed {grown.d_vllm_computed:.0f} prompt tokens for {grown.d_requests:.0f} requests",
        )
        self._grown = self._grown.plus(grown)
        return grown

    def _compare_all(self, expected: Sequence[Expected], send: Send, phase: str) -> int:
        for one in expected:
            self._compare(one, send, phase)
        return len(expected)

    def _compare(self, expected: Expected, send: Send, phase: str) -> None:
        """One request through the router."""
        before = counters.handoffs(self._ports)
        answer = self._answer(send, self._router, expected.case, phase)
        self._count(answer, expected, phase)
        after = counters.handoffs(self._ports)
        if after.requests - before.requests == 1:
            self._handoffs.append(after.seconds - before.seconds)
        if answer is not None and answer.first_after is not None:
            self._ttft.append(answer.first_after)

    def _count(self, answer: Answer | None, expected: Expected, phase: str) -> None:
        self.figures.cases += 1
        right = expected.answer
        if answer is not None and (answer.ids, answer.text, answer.finish_reason) == (right.ids, right.text, right.finish_reason):
            self.figures.identical += 1
            return
        got = "no answer" if answer is None else f"{list(answer.ids)} {answer.text!r} {answer.finish_reason}"
        say(f"    differs: {phase}, {expected.case.name}: {got}; alone: {list(right.ids)} {right.text!r} {right.finish_reason}")
        self.figures.failures.append(f"{phase}: {expected.case.name}: {got}")

    def _answer(self, send: Send, server: Server, case: Case, phase: str) -> Answer | None:
        try:
            return send(server, case)
        except HttpFailure as failure:
            self.figures.failures.append(f"{phase}: {case.name}: {failure}")
            return None

    # Parts of a request, to put pages into one tier only.

    def _prefill(self, expected: Expected) -> Answer | None:
        """P's leg: saves the prompt's pages and gives the first token."""
        before = counters.read(self._ports)
        case = self._prompts.exact(f"{expected.case.name}, P alone", list(expected.prompt_ids), max_tokens=1)
        answer = self._answer(ask, self._p, case, "prefill")
        saved = wait_for(lambda: counters.read(self._ports).since(before).p_pages_saved >= expected.pages, SETTLE_SECONDS)
        self.figures.claim(saved, f"P did not save the {expected.pages} pages of {case.name}")
        return answer

    def _decode_all(self, expected: Sequence[Expected], first: Sequence[Answer | None]) -> int:
        """D's leg as the router sends it, without a P."""
        asked = 0
        for one, begun in zip(expected, first, strict=True):
            if begun is None:
                continue  # counted as a failure already
            case = self._prompts.exact(
                f"{one.case.name}, D alone",
                [*one.prompt_ids, *begun.ids],
                max_tokens=one.case.body["max_tokens"] - 1,
                kv_transfer_params={"pegaflow_expected": True},
            )
            rest = self._answer(ask, self._d, case, "decode")
            whole = None if rest is None else rest._replace(ids=begun.ids + rest.ids, text=begun.text + rest.text)
            self._count(whole, one, "D alone")
            asked += 1
        return asked

    def _saves_into_tier_a(self) -> bool:
        self._probes += 1
        probe = self._prompts.completion(f"harbour {self._probes}", BLOCK_SIZE + 8)
        return saves(self._p, self._ports.tier_a_health, probe)
