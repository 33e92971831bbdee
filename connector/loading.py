"""Lookups and loads of the scheduler half: the tracker's commands become calls to the bus and work for the ranks.

    new ─▶ lookup ─▶ matched (until answered) ─▶ allocated ─▶ claimed (with the step) ─▶ received (by every rank)

Nothing here waits; a poll of a waiting request costs the same however long its prompt is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pegaflow.common.transfer_params import EXPECTED
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.load_commands import Ask, Cancel, Command, Load, Loaded, Release
from pegaflow.connector.load_plan import LoadPlan, load_plan
from pegaflow.connector.load_tracker import LoadTracker
from pegaflow.connector.options import Options
from pegaflow.connector.request_keys import RequestKeys, plain, version
from pegaflow.connector.session import LookupAnswer, SchedulerBus, SessionId

if TYPE_CHECKING:
    from vllm.v1.request import Request

RPC_MARGIN_S = 2.0
"""On top of the wait: the bus ends a lookup after wait + 1 s, and this is the net below it."""

SOURCES = ("local", "remote", "disk")
"""Names of the bytes in `LookupAnswer.sources`."""


class _Asked(NamedTuple):
    at: float
    pages: int


class Loading:
    """`loaded` hears which blocks of a request came from the tier: `(request id, first, last)`."""

    def __init__(
        self,
        options: Options,
        engine: Engine,
        keys: RequestKeys,
        clock: Callable[[], float],
        counters: Counters,
        log: logging.Logger,
        loaded: Callable[[str, int, int], None],
    ) -> None:
        self._options, self._keys, self._clock = options, keys, clock
        self._block_size = engine.block_size
        self._counters, self._log, self._loaded = counters, log, loaded
        self._bus: SchedulerBus | None = None
        self._loads: list[Load] = []
        self._asked: dict[int, _Asked] = {}
        self._claimed: dict[str, float] = {}
        self._refused: set[str] = set()
        self._left_alone: set[str] = set()
        self.tracker = LoadTracker(engine.block_size, engine.shards, options.strict, options.wait_ms / 1000 + RPC_MARGIN_S)

    def connect(self, bus: SchedulerBus | None) -> None:
        """From now on lookups go there. None: every lookup is a miss."""
        self._bus = bus

    # A request's way.

    def new(self, request: Request, held: int) -> None:
        """Asks at once, so that the answer is often there when vLLM first asks. `held`: blocks that vLLM probably has itself."""
        self._ask(request, held)

    def matched(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Tokens after the `computed` ones that will be loaded, asynchronously; None: not known yet."""
        if computed % self._block_size:
            self._leave_alone(request.request_id, "partial_block")
            return 0, False
        self.take_answers()
        request_id, now = request.request_id, self._clock()
        match = self.tracker.matched(request_id, version(request), computed, self._session(), now)
        if match.ask:
            self._run(match.commands)
            self._ask(request, computed // self._block_size)
            match = self.tracker.matched(request_id, version(request), computed, self._session(), now)
        self._run(match.commands)
        if match.refuse and request_id not in self._refused:
            self._refused.add(request_id)
            self._counters.add("requests_refused", label=match.refuse)
            self._log.error(
                "strict_decode_refused: request %s: %s; %d of %d prompt ids would have to be computed here",
                request_id,
                match.refuse,
                match.tokens,
                request.num_prompt_tokens,
            )
        return match.tokens, bool(match.tokens)

    def allocated(self, request_id: str, table: Sequence[int], tokens: int) -> None:
        """`tokens` are to be loaded into the request's blocks, or nothing is."""
        self._run(self.tracker.allocated(request_id, tokens, table))

    def claimed(self) -> tuple[Load, ...]:
        """Loads that were claimed since the last call, for the ranks."""
        loads, self._loads = tuple(self._loads), []
        return loads

    def received(self, request_id: str, code: str) -> None:
        """Every rank has reported this receive; `code` tells why it failed at one of them. Others' receives are ignored."""
        claimed_at = self._claimed.pop(request_id, None)
        if claimed_at is None:
            return
        self._counters.add("loads", label=code or "done")
        self._counters.observe("load_seconds", self._clock() - claimed_at)
        self._run(self.tracker.received(request_id, bool(code)))

    def finished(self, request_id: str) -> None:
        """However it ended. A running load goes on."""
        self._refused.discard(request_id)
        self._left_alone.discard(request_id)
        self._run(self.tracker.finished(request_id))

    def reset(self) -> None:
        """What was found so far is void: waiting requests ask again, with other keys."""
        self._run(self.tracker.reset())

    def take_answers(self) -> None:
        if self._bus is not None:
            for answer in self._bus.drain():
                self._count(answer)
                self._run(self.tracker.answered(answer))

    # The tier.

    def _session(self) -> SessionId | None:
        return None if self._bus is None else self._bus.session()

    def _ask(self, request: Request, first: int) -> None:
        plan = load_plan(
            prompt=request.num_prompt_tokens,
            known=request.num_tokens,
            block_size=self._block_size,
            first=first,
            tails=self._options.pd_tail_load and plain(request),
            strict=self._options.strict,
        )
        hashed = self._keys.full_blocks(request)
        if plan.last > hashed:
            self._leave_alone(request.request_id, "hashes_behind")
            plan = LoadPlan(first, hashed, ())
        commands = self.tracker.asked(request.request_id, request.num_prompt_tokens, version(request), plan, self._clock())
        for command in commands:
            if isinstance(command, Ask):
                self._send(command, request)
            else:
                self._run([command])

    def _send(self, ask: Ask, request: Request) -> None:
        plan, sent = ask.plan, False
        self._asked[ask.lookup] = _Asked(self._clock(), max(0, plan.last - plan.first) + bool(plan.tails))
        if self._bus is not None and self._session() is not None:
            keys = self._keys.blocks(request, plan.first, plan.last)
            tails = [self._keys.end(request, end) for end in plan.tails]
            params: Mapping[str, Any] = request.kv_transfer_params or {}
            # Who has decoded before asks for blocks of its answer, too: nobody knows whether they are on their way.
            fresh = request.num_tokens == request.num_prompt_tokens
            expected = self._options.strict or (fresh and params.get(EXPECTED) is True)
            sent = self._bus.lookup(ask.lookup, ask.request_id, keys, tails, self._options.wait_ms / 1000, expected)
        if not sent:
            self._over(ask.lookup, "no_tier", "no_tier")
            self.tracker.unanswerable(ask.lookup)

    def _run(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Release(lease):
                    if self._bus is not None:
                        self._bus.release(lease)
                case Cancel(lookup, reason):
                    self._over(lookup, reason, reason)
                    if self._bus is not None:
                        self._bus.cancel(lookup)
                case Load():
                    self._loads.append(command)
                    self._claimed[command.request_id] = self._clock()
                    if command.lease is not None and self._bus is not None:
                        self._bus.loading(command.lease)
                case Loaded(request_id, first, last):
                    self._loaded(request_id, first, last)
                case Ask():
                    raise AssertionError("a lookup needs its request")

    # Statistics.

    def _count(self, answer: LookupAnswer) -> None:
        found = answer.full + (answer.tail >= 0)
        outcome = "hit" if found else answer.code or "miss"
        asked = self._over(answer.lookup, outcome, answer.code or "unknown", found)
        if asked is not None:
            self._counters.observe("lookup_seconds", self._clock() - asked.at, outcome)
            for number, source in enumerate(SOURCES):
                self._counters.add("lookup_pages", answer.sources.count(number), source)

    def _over(self, lookup: int, outcome: str, reason: str, found: int = 0) -> _Asked | None:
        """Counts a lookup once, however it ended. None: that has been done."""
        asked = self._asked.pop(lookup, None)
        if asked is not None:
            self._counters.add("lookups", label=outcome)
            self._counters.add("pages_missed", asked.pages - found, reason)
        return asked

    def _leave_alone(self, request_id: str, reason: str) -> None:
        if request_id not in self._left_alone:
            self._left_alone.add(request_id)
            self._counters.add("requests_left_alone", label=reason)
