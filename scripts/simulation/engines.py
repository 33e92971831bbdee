"""A prefill and a decode engine. vLLM's scheduler is modelled by what costs time: steps of a fixed rate, copies, lookups.

    prefill   lookup ▶ copy in ▶ first come, first served, up to `step_tokens` a step ▶ answer; pages are saved behind each step
    decode    lookup (expected) ▶ copy in ▶ one token per `tpot`; each block that fills is saved

Neither keeps a prefix cache of its own, and a decode engine takes all that come: tiers see more work than in truth, not less.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from pegaflow.common.wire.messages import loads
from pegaflow.connector.load_plan import load_plan

from simulation.connector import Connector
from simulation.pipes import Pipe
from simulation.request import Request
from simulation.savings import Savings
from simulation.tier import SimTier

WAIT_S = 5.0


class _Engine:
    def __init__(self, tier: SimTier, role: str, done: Callable[[Request], None]) -> None:
        self.tier, self.world, self._done = tier, tier.world, done
        self.name = f"{role}-{tier.node}"
        self.connector = Connector(tier, self.name, self.world.model.ranks)
        self.copies = Pipe(self.world.hardware.copy)
        self.open = 0
        self._block = self.world.model.block
        self._savings = Savings(self.connector, self._block, role == "p")

    def start(self) -> None:
        self.connector.start()

    @property
    def idle(self) -> bool:
        return self.open == 0 and self.connector.idle and self._savings.tracker.open_saves == 0

    def _copy_in(self, hits: loads.Hits, then: Callable[[], None]) -> None:
        """Every rank loads every page (MLA), all ranks at once."""
        self.connector.loading(hits)
        ended = self.copies.carry(len(hits.slots) * self.world.model.page_bytes, self.world.now)
        self.world.agenda.at(ended, self._copied, hits, then)

    def _copied(self, hits: loads.Hits, then: Callable[[], None]) -> None:
        self.connector.release(hits)
        then()


class PrefillEngine(_Engine):
    """Takes a request until its first token is there; `done` is told."""

    def __init__(self, tier: SimTier, done: Callable[[Request], None]) -> None:
        super().__init__(tier, "p", done)
        self._queue: deque[Request] = deque()
        self._stepping = False
        self.busy_s = 0.0

    def take(self, request: Request) -> None:
        self.open += 1
        plan = load_plan(prompt=request.prompt, known=request.prompt, block_size=self._block, first=0, tails=False, strict=False)
        keys, began = request.session.keys(plan.last), self.world.now
        self._savings.tracker.admitted(request.name, request.prompt, True)
        if not keys:
            self._found(request, began, None)
            return
        self.connector.lookup(request.name, keys, [], WAIT_S, False, lambda hits: self._found(request, began, hits))

    def _found(self, request: Request, began: float, hits: Any) -> None:
        world, now = self.world, self.world.now
        full = 0
        if isinstance(hits, loads.Hits):
            sources, full = Counter(hits.sources), hits.full
            only_here = set(sources) <= {loads.LOCAL} and not hits.reason
            world.tally.span("lookup_local" if only_here else "lookup_other", began, now)
            for name, source in (("local", loads.LOCAL), ("remote", loads.REMOTE), ("disk", loads.DISK)):
                world.tally.count(f"tokens_{name}", began, sources[source] * self._block)
        elif hits is not None:
            world.tally.count(f"lookup_{hits.code}", began)
        request.computed = min(full * self._block, request.prompt - 1)
        world.tally.count("tokens_computed", began, request.prompt - request.computed)
        self._savings.tracker.loaded(request.name, 0, full)
        if full:
            self._copy_in(hits, lambda: self._ready(request))
        else:
            self._ready(request)

    def _ready(self, request: Request) -> None:
        self._queue.append(request)
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        model = self.world.model
        left, parts = model.step_tokens, []
        for request in self._queue:
            scheduled = min(left, request.prompt - request.computed)
            parts.append((request, request.computed, scheduled, request.prompt))
            left -= scheduled
            if not left:
                break
        self._stepping = bool(parts)
        if parts:
            intent = self._savings.step(parts)
            seconds = (model.step_tokens - left) / model.prefill
            self.busy_s += seconds
            self.world.agenda.after(seconds, self._stepped, [(part[0], part[2]) for part in parts], intent)

    def _stepped(self, parts: list[tuple[Request, int]], intent: Any) -> None:
        if intent is not None:
            self.connector.computed(intent)
        for request, scheduled in parts:
            request.computed += scheduled
            if request.computed == request.prompt:
                assert self._queue.popleft() is request
                self._savings.tracker.finished(request.name)
                self.open -= 1
                request.answered = self.world.now
                self._done(request)
        self._step()


class DecodeEngine(_Engine):
    """Takes a request with its first token until its last; `done` is told."""

    def __init__(self, tier: SimTier, done: Callable[[Request], None]) -> None:
        super().__init__(tier, "d", done)
        self._steps: dict[int, list[tuple[Request, int]]] = {}

    def take(self, request: Request) -> None:
        self.open += 1
        ids, session = request.prompt + 1, request.session
        plan = load_plan(prompt=ids, known=ids, block_size=self._block, first=0, tails=True, strict=False)
        tails = [session.keys(end // self._block)[-1] if end % self._block == 0 else session.tail(end) for end in plan.tails]
        self._savings.tracker.admitted(request.name, ids, True)
        began = self.world.now

        def found(hits: Any) -> None:
            covered, full = 0, 0
            if isinstance(hits, loads.Hits):
                full = hits.full
                covered = min(plan.covered(hits.full, hits.tail, self._block), request.prompt)
            self.world.tally.span("lookup_decode", began, self.world.now)
            self.world.tally.count("decode_tokens", began, request.prompt)
            self.world.tally.count("decode_recomputed", began, request.prompt - covered)
            self._savings.tracker.loaded(request.name, 0, full)
            if covered:
                self._copy_in(hits, lambda: self._ready(request, request.prompt - covered))
            else:
                self._ready(request, request.prompt)

        self.connector.lookup(request.name, session.keys(plan.last), tails, WAIT_S, True, found)

    def _ready(self, request: Request, missing: int) -> None:
        """Its pages are in the engine's blocks. What is missing is computed here, at the pace of a prefill engine."""
        now, tpot = self.world.now, self.world.model.tpot
        request.loaded = now
        self.world.tally.span("handoff", request.answered, now)
        if missing:
            now += missing / self.world.model.prefill
        first = math.floor(now / tpot) + 1
        # Step s computes position prompt + s: it fills a block when prompt + s + 1 is one's end.
        fill = -request.prompt % self._block or self._block
        for step in range(fill - 1, request.output - 1, self._block):
            self._at(first + step, request, request.prompt + step)
        self._at(first + request.output - 1, request, -1)

    def _at(self, step: int, request: Request, position: int) -> None:
        if step not in self._steps:
            self._steps[step] = []
            self.world.agenda.at(step * self.world.model.tpot, self._step, step)
        self._steps[step].append((request, position))

    def _step(self, step: int) -> None:
        fills = []
        for request, position in self._steps.pop(step):
            if position >= 0:
                fills.append((request, position, 1, position + 1))
            else:
                self._savings.tracker.finished(request.name)
                self.open -= 1
                self._done(request)
        intent = self._savings.step(fills)
        if intent is not None:
            self.world.agenda.after(self.world.model.tpot, self.connector.computed, intent)
