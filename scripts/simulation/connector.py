"""An engine's connector as its tier sees it: attach, lookups and leases, intents and words, signs of life."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.attach import Alive, Attach, Attached
from pegaflow.common.wire.messages.loads import Hits, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import KEY_MARK_BYTES, Abandoned, Grant, Intent, Written
from pegaflow.common.wire.version import PROTOCOL
from pegaflow.services.tier import commands, events

from simulation.tier import SimTier
from simulation.workload import FINGERPRINT
from simulation.world import Asker

ALIVE_S = 0.5
GRANT_WAIT_S = 0.05
"""After the forward pass (docs/protocol.md 6)."""


@dataclass(slots=True, eq=False)
class OpenIntent:
    """One step's pages. `ready_at`: when each rank's bytes are in; none while the step runs."""

    keys: Sequence[bytes]
    stripes: bytes
    ended: Callable[[], None]
    grant: Grant | None = None
    ready_at: list[float] = field(default_factory=list)
    late: bool = False


class Connector:
    """One engine: a scheduler half and `ranks` ranks that share the pages of a block among them (MLA)."""

    def __init__(self, tier: SimTier, name: str, ranks: int) -> None:
        self.tier, self.ranks = tier, ranks
        self.world = tier.world
        self._attached = [self._attach(name, rank) for rank in range(-1, ranks)]
        first = self._attached[0]
        self.session, self.token = first.session, first.token
        tier.listeners[first.topic] = self
        self._seqs = [one.first_seq for one in self._attached]
        self._numbers = itertools.count(1)
        self._intents: dict[int, OpenIntent] = {}
        self._held: list[set[int]] = [set() for _ in range(ranks)]
        self._lookups: dict[int, None] = {}
        self._leases: dict[int, None] = {}
        self._last = self._seen = 0

    def _attach(self, name: str, rank: int) -> Attached:
        scheduler, page = rank < 0, self.world.model.page_bytes
        ask = Attach(
            PROTOCOL,
            "simulation",
            name,
            "scheduler" if scheduler else "rank",
            max(rank, 0),
            0,
            1,
            max(rank, 0),
            self.ranks,
            FINGERPRINT,
            FINGERPRINT if scheduler else b"",
            [],
            b"simulated-layout",
            u32s([page]),
            "read_write",
            1,
            "0" * 32,
            f"{name}{rank}".encode().ljust(16, b"-")[-16:],
            1,
        )
        out = self.tier.free_of_cost(events.Asked("asker", ask))
        return next(c.message for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Attached))

    def start(self) -> None:
        self.world.agenda.after(self.world.random.uniform(0.0, ALIVE_S), self._alive)

    # --- loads -------------------------------------------------------------------------------------------------------

    def lookup(
        self,
        request: str,
        keys: Sequence[bytes],
        tails: Sequence[bytes],
        wait_s: float,
        expected: bool,
        done: Callable[[Any], None],
    ) -> None:
        """`done(hits)`, or an error; the caller owns the lease until `release`."""
        number = self._last = next(self._numbers)
        self._lookups[number] = None

        def answered(answer: Any) -> None:
            self._lookups.pop(number, None)
            if isinstance(answer, Hits) and answer.lease:
                self._leases[answer.lease] = None
            done(answer)

        message = Lookup(self.session, self.token, number, request, keys, tails, int(wait_s * 1e3), expected)
        self._ask(message, answered)

    def loading(self, hits: Hits) -> None:
        self._ask(Loading(self.session, self.token, u64s([hits.lease])), None, len(hits.slots))

    def release(self, hits: Hits) -> None:
        self._leases.pop(hits.lease, None)
        self._ask(Release(self.session, self.token, u64s([hits.lease])), None, len(hits.slots))

    def _ask(self, message: Any, answered: Callable[[Any], None] | None, keys: int = -1) -> None:
        hop = self.world.hardware.hop
        self.world.agenda.after(hop, self.tier.asked, message, Asker(answered, hop), 0, keys)

    # --- saves -------------------------------------------------------------------------------------------------------

    def intent(
        self,
        keys: Sequence[bytes],
        stripes: Sequence[int],
        requests: Sequence[str],
        owners: Sequence[int],
        tails: int,
        ended: Callable[[], None],
    ) -> OpenIntent:
        """Of one step. `ended`: every rank has said its last word."""
        number = next(self._numbers)
        one = self._intents[number] = OpenIntent(keys, bytes(stripes), ended)
        rows = u32s([self.world.model.block] * len(keys))
        message = Intent(self.tier.epoch, number, keys, rows, one.stripes, list(requests), u32s(owners), tails)
        self._publish(-1, message)
        return one

    def computed(self, one: OpenIntent) -> None:
        """The forward pass is over: each rank copies its pages, all at once."""
        size, now = self.world.model.page_bytes, self.world.now
        counts = [one.stripes.count(rank) for rank in range(self.ranks)]
        one.ready_at = [now + count * size / self.world.hardware.copy for count in counts]
        if one.grant is not None:
            self._write(one)
        else:
            self.world.agenda.after(GRANT_WAIT_S, self._late, one)

    def _late(self, one: OpenIntent) -> None:
        if one.grant is None:
            one.late = True
            self.world.tally.count("grants_late", self.world.now)
            one.ended()

    def told(self, message: Grant, seq: int) -> None:
        """The grant has come."""
        self._seen = seq
        one = self._intents.pop(message.intent)
        one.grant = message
        for rank in {one.stripes[position] for position in message.positions}:
            self._held[rank].add(message.grant)
        self.world.tally.count("no_space", self.world.now, message.statuses.count(3))
        if one.late or one.ready_at:
            self._write(one)

    def _write(self, one: OpenIntent) -> None:
        grant = one.grant
        assert grant is not None
        last = self.world.now
        for rank in range(self.ranks):
            mine = [i for i, position in enumerate(grant.positions) if one.stripes[position] == rank]
            if mine:
                at = max(self.world.now, one.ready_at[rank]) if one.ready_at else self.world.now
                last = max(last, at)
                self.world.agenda.at(at, self._word, one, rank, mine)
        if not one.late:
            self.world.agenda.at(last, one.ended)

    def _word(self, one: OpenIntent, rank: int, mine: list[int]) -> None:
        grant = one.grant
        assert grant is not None
        self._held[rank].discard(grant.grant)
        if not one.late:
            for i in mine:
                self.tier.contents[grant.slots[i]] = one.keys[grant.positions[i]][16:32]
        slots, generations = u32s(grant.slots[i] for i in mine), u64s(grant.generations[i] for i in mine)
        marks = b"".join(grant.marks[KEY_MARK_BYTES * i : KEY_MARK_BYTES * (i + 1)] for i in mine)
        kind = Abandoned if one.late else Written
        self._publish(rank, kind(self.tier.epoch, self.session, grant.grant, slots, generations, marks))

    def _publish(self, rank: int, message: Any) -> None:
        seq = self._seqs[rank + 1]
        self._seqs[rank + 1] += 1
        self.world.agenda.after(self.world.hardware.hop, self.tier.published, self._said(rank, seq, message))

    def _said(self, rank: int, seq: int, message: Any) -> events.Published:
        return events.Published(self.session, self._attached[rank + 1].member, seq, self.token, message)

    def _alive(self) -> None:
        self.world.agenda.after(ALIVE_S, self._alive)
        epoch, seen = self.tier.epoch, self._seen
        signs = [self._said(-1, 0, Alive(epoch, seen, 0, u64s(), u64s(self._leases), u64s(self._lookups), self._last))]
        signs += [self._said(rank, 0, Alive(epoch, seen, 0, u64s(held))) for rank, held in enumerate(self._held)]
        self.world.agenda.after(self.world.hardware.hop, self.tier.signs_of_life, signs)

    @property
    def idle(self) -> bool:
        """Nothing is held."""
        return not (self._intents or self._lookups or self._leases or any(self._held))
