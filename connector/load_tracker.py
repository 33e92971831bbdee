"""Lookups, leases and loads of all requests. Pure: no vLLM, no torch, no sockets, no clock.

    asked ─▶ ASKING ─▶ answered ─▶ ANSWERED ─▶ allocated(n > 0) ─▶ LOADING ─▶ received ─▶ LOADED or BARRED
               │           │           │  ▲                                      │
               │           ▼           ▼  └ matched: the claim                   └ the lease is released, once
               │        SETTLED: nothing to load
               └ UNSENT: no tier yet (strict decode waits for one)

- A lease is held in ANSWERED and LOADING only, and every way out of the two releases it, exactly once.
- A request whose load failed is BARRED: vLLM asks again when it recomputes, and "hit, fail, hit" must not loop.
- A request that ends while LOADING stays until every rank has reported: its blocks are still being written.
- Strict decode never answers "nothing": what is not all there is claimed and then reported as a failed receive,
  which is the one way to make vLLM fail a single request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pegaflow.connector.load_commands import Ask, Cancel, Command, Load, Loaded, Match, Release
from pegaflow.connector.load_plan import LoadPlan
from pegaflow.connector.session import LeaseRef, LookupAnswer, SessionId

__all__ = ["Ask", "Cancel", "Command", "Load", "LoadTracker", "Loaded", "Match", "Phase", "Release", "Version"]

Version = tuple[int, bytes]
"""What a lookup was made for: number of ids, last block hash. Another one means the request has changed."""


class Phase(StrEnum):
    UNSENT = "unsent"
    ASKING = "asking"
    ANSWERED = "answered"
    SETTLED = "settled"
    LOADING = "loading"
    LOADED = "loaded"
    BARRED = "barred"


WAIT = Match(None)
NOTHING = Match(0)


@dataclass(slots=True)
class _Request:
    version: Version
    plan: LoadPlan
    prompt: int
    deadline: float
    phase: Phase
    lookup: int = 0
    answer: LookupAnswer | None = None
    lease: LeaseRef | None = None
    code: str = ""
    computed: int = 0
    tokens: int = 0
    spared: int = 0
    whole: int = 0
    over: bool = False


@dataclass(slots=True)
class LoadTracker:
    """State of all loads of one engine.

    `block_size` in tokens; `shards`: slots per key; `strict`: `pegaflow.decode=strict`; `patience_s`: seconds after
    which a lookup counts as failed whatever the bus does.
    """

    block_size: int
    shards: int
    strict: bool
    patience_s: float
    _requests: dict[str, _Request] = field(default_factory=dict)
    _lookups: dict[int, str] = field(default_factory=dict)
    _next_lookup: int = 1
    _leases: int = 0
    _loading: int = 0

    def asked(self, request_id: str, prompt: int, version: Version, plan: LoadPlan, now: float) -> list[Command]:
        """A lookup is wanted: the request is new or has changed. Gives up what was known about it."""
        commands: list[Command] = []
        deadline = now + self.patience_s
        if (before := self._requests.get(request_id)) is not None:
            if before.phase in (Phase.BARRED, Phase.LOADING):
                return []
            if before.phase is Phase.UNSENT:
                # Still the same wait for a tier: trying again must not make it longer.
                deadline = before.deadline
            self._drop(before, commands)
        request = _Request(version, plan, prompt, deadline, Phase.SETTLED)
        self._requests[request_id] = request
        if not plan.empty:
            request.phase = Phase.ASKING
            request.lookup = self._next_lookup
            self._lookups[self._next_lookup] = request_id
            commands.append(Ask(self._next_lookup, request_id, plan))
            self._next_lookup += 1
        return commands

    def unanswerable(self, lookup: int) -> None:
        """The lookup could not be sent: there is no tier."""
        request = self._requests[self._lookups.pop(lookup)]
        request.lookup = 0
        request.phase = Phase.UNSENT if self.strict else Phase.SETTLED
        request.code = "no_tier"

    def answered(self, answer: LookupAnswer) -> list[Command]:
        """An answer, possibly one that nobody waits for any more."""
        request_id = self._lookups.pop(answer.lookup, None)
        if request_id is None:
            return [] if answer.lease is None else [Release(answer.lease)]
        request = self._requests[request_id]
        request.lookup = 0
        request.lease = answer.lease
        self._leases += answer.lease is not None
        if answer.lease is None or (answer.full == 0 and answer.tail < 0):
            commands: list[Command] = []
            self._settle(request, answer.code, commands)
            return commands
        # With a code as well: it tells why there is no more than that.
        request.code = answer.code
        request.phase = Phase.ANSWERED
        request.answer = answer
        return []

    def matched(self, request_id: str, version: Version, computed: int, session: SessionId | None, now: float) -> Match:
        """vLLM asks how many tokens after the `computed` ones (a multiple of the block size) can be loaded."""
        request = self._requests.get(request_id)
        if request is None:
            return Match(None, ask=True)
        if request.phase is Phase.BARRED:
            return NOTHING
        # Fewer blocks of its own than when the lookup was made, or than when its answer was let go because of them.
        vanished = computed // self.block_size < request.plan.first or computed < request.spared
        changed = request.version != version or vanished
        commands: list[Command] = []
        if request.phase is Phase.ASKING and not changed:
            if now <= request.deadline:
                return WAIT
            self._settle(request, "lookup_timeout", commands, "lookup_timeout")
        if request.phase is Phase.UNSENT and not changed:
            if session is not None:
                return Match(None, ask=True)
            if now <= request.deadline:
                return WAIT
            self._settle(request, "no_tier", commands)
        lost = request.lease is not None and request.lease.session != session
        if changed or lost or request.phase is Phase.LOADED:
            return Match(None, ask=True)
        request.computed = computed
        known = version[0]
        if request.answer is not None:
            covered = request.plan.covered(request.answer.full, request.answer.tail, self.block_size)
        else:
            covered = 0
        covered = max(covered, computed)
        if self.strict and covered < request.prompt - 1:
            if not request.code:
                request.code = "prompt_incomplete"
            self._settle(request, request.code, commands)
            return Match(known - 1 - computed, refuse=request.code, commands=tuple(commands))
        tokens = max(0, min(covered, known - 1) - computed)
        if tokens == 0 and request.phase is Phase.ANSWERED:
            self._settle(request, "", commands)
            request.spared = computed
        return Match(tokens, commands=tuple(commands))

    def allocated(self, request_id: str, tokens: int, table: Sequence[int]) -> list[Command]:
        """vLLM gave the request blocks; `tokens` of them are to be loaded. `table` is its whole block table."""
        request = self._requests.get(request_id)
        commands: list[Command] = []
        if tokens == 0:
            if request is not None and request.phase is Phase.ANSWERED:
                self._settle(request, "", commands)
            return commands
        if request is None:
            # vLLM waits for a receive that nobody prepared: it has to be ended all the same.
            request = self._requests[request_id] = _Request((0, b""), LoadPlan(0, 0, ()), 0, 0.0, Phase.SETTLED)
        request.tokens = tokens
        first = request.computed // self.block_size
        request.whole = last = -(-(request.computed + tokens) // self.block_size)
        blocks = tuple(table[first:last])
        answer = request.answer
        begin = (first - request.plan.first) * self.shards
        end = begin + len(blocks) * self.shards
        if request.phase is Phase.ANSWERED and answer is not None and end <= len(answer.slots):
            tail = last > request.plan.last and request.plan.tails[answer.tail] % self.block_size != 0
            request.whole = last - tail
            slots, generations = answer.slots[begin:end], answer.generations[begin:end]
            load = Load(request_id, blocks, request.lease, slots, generations, tail, "")
        else:
            self._settle(request, request.code, commands)
            load = Load(request_id, blocks, None, (), (), False, request.code or "not_leased")
        request.phase = Phase.LOADING
        self._loading += 1
        commands.append(load)
        return commands

    def received(self, request_id: str, failed: bool) -> list[Command]:
        """Every rank has reported the receive of this request."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.LOADING:
            return []
        commands: list[Command] = []
        self._loading -= 1
        self._release(request, commands)
        request.answer = None
        if request.over:
            del self._requests[request_id]
            return commands
        request.phase = Phase.BARRED if failed else Phase.LOADED
        if not failed:
            commands.append(Loaded(request_id, request.computed // self.block_size, request.whole))
        return commands

    def finished(self, request_id: str) -> list[Command]:
        """The request is over, however."""
        request = self._requests.get(request_id)
        commands: list[Command] = []
        if request is None:
            return commands
        if request.phase is Phase.LOADING:
            request.over = True
            return commands
        self._drop(request, commands)
        del self._requests[request_id]
        return commands

    def reset(self) -> list[Command]:
        """What was found is void for every request, except for loads that are under way."""
        commands: list[Command] = []
        for request_id in [request_id for request_id, request in self._requests.items() if request.phase is not Phase.LOADING]:
            self._drop(self._requests.pop(request_id), commands)
        return commands

    def sources(self, request_id: str) -> dict[int, int]:
        """Tokens that the running load of a request brings, by the byte that the answer has for their page's source."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.LOADING or request.answer is None:
            return {}
        plan, answer = request.plan, request.answer
        begin, end = request.computed, request.computed + request.tokens
        tokens: dict[int, int] = {}
        for index in range(begin // self.block_size, -(-end // self.block_size)):
            source = answer.sources[index - plan.first]
            first = index * self.block_size
            tokens[source] = tokens.get(source, 0) + min(end, first + self.block_size) - max(begin, first)
        return tokens

    @property
    def open_lookups(self) -> int:
        return len(self._lookups)

    @property
    def open_leases(self) -> int:
        return self._leases

    @property
    def open_loads(self) -> int:
        """Loads that not every rank has reported."""
        return self._loading

    @property
    def requests(self) -> int:
        """Requests that are remembered, those included that are over but still being loaded."""
        return len(self._requests)

    def validate(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        for lookup, request_id in self._lookups.items():
            assert 0 < lookup < self._next_lookup, lookup
            request = self._requests[request_id]
            assert request.phase is Phase.ASKING, (request_id, request.phase)
            assert request.lookup == lookup, (request_id, lookup, request.lookup)
        leases = [request.lease for request in self._requests.values() if request.lease is not None]
        assert len(set(leases)) == len(leases) == self._leases, f"{self._leases} leases are held, requests have {leases}"
        assert sum(request.phase is Phase.LOADING for request in self._requests.values()) == self._loading
        for request_id, request in self._requests.items():
            phase = request.phase
            assert (request.lookup != 0) == (phase is Phase.ASKING), (request_id, phase, request.lookup)
            assert request.lease is None or phase in (Phase.ANSWERED, Phase.LOADING), (request_id, phase)
            assert phase is not Phase.ANSWERED or request.lease is not None, request_id
            assert not request.over or phase is Phase.LOADING, (request_id, phase)
            assert request.answer is None or phase in (Phase.ANSWERED, Phase.LOADING), (request_id, phase)

    def _release(self, request: _Request, commands: list[Command]) -> None:
        if request.lease is not None:
            commands.append(Release(request.lease))
            request.lease = None
            self._leases -= 1

    def _drop(self, request: _Request, commands: list[Command], why: str = "cancelled") -> None:
        if request.lookup:
            del self._lookups[request.lookup]
            commands.append(Cancel(request.lookup, why))
            request.lookup = 0
        self._release(request, commands)
        request.answer = None

    def _settle(self, request: _Request, code: str, commands: list[Command], why: str = "cancelled") -> None:
        self._drop(request, commands, why)
        request.phase = Phase.SETTLED
        request.code = code
