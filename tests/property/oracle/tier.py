"""The tier and the scheduler half's bus to it. It seals what both ranks wrote, and looks at every page that it seals."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pegaflow.connector.engine import Engine
from pegaflow.connector.session import AttachState, Grant, IntentRef, LeaseRef, LookupAnswer, SessionId

from oracle.prefixes import Prefixes, unhash
from oracle.request import Request
from oracle.verdict import Verdict

FINGERPRINT = b"F" * 16


@dataclass(slots=True)
class Slot:
    """`generation` is raised before the slot may be written again."""

    generation: int
    shard: int
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Pending:
    slots: list[int]
    left: int
    good: bool = True


@dataclass(slots=True)
class Lease:
    keys: tuple[bytes, ...]
    slots: array[int]
    loading: bool = False
    released: bool = False
    expired: bool = False


@dataclass(slots=True)
class Asked:
    lookup: int
    request_id: str
    tokens: int
    keys: list[bytes]
    tails: list[bytes]


@dataclass(frozen=True, slots=True)
class Told:
    """What a request's last lookup was told: it was made for `tokens` ids, and the first `covered` of them are here."""

    session: SessionId
    tokens: int
    covered: int
    code: str


class Tier:
    """Also the scheduler half's `SchedulerBus`."""

    def __init__(self, prefixes: Prefixes, verdict: Verdict, engine: Engine, seen: Counter[str]) -> None:
        self._prefixes = prefixes
        self._verdict = verdict
        self._seen = seen
        self._ranks = engine.ranks
        self._places = [
            (engine.shard(tp, pp), engine.stripe(tp) if engine.stripes > 1 else None)
            for pp in range(engine.pp)
            for tp in range(engine.tp)
        ]
        self.shards = engine.shards
        self.requests: Mapping[str, Request] = {}
        self.told: dict[str, Told] = {}
        self._epoch = 0
        self.leases: dict[LeaseRef, Lease] = {}
        self.intents = self.lookups = 0
        self.accepts = True
        self.has_space = True
        self.sealed_full = self.sealed_tails = 0
        self._begin()

    def _begin(self) -> None:
        self._epoch += 1
        self._session: SessionId | None = SessionId(self._epoch, 1)
        self.slots: list[Slot] = []
        self._unused: list[int] = []
        # Slot and generation → stamp of the key that it was for.
        self._pages: dict[tuple[int, int], int] = {}
        self.sealed: dict[bytes, list[int]] = {}
        self.pending: dict[bytes, Pending] = {}
        self._keys: dict[IntentRef, list[bytes]] = {}
        self._grants: dict[tuple[int, IntentRef], Grant] = {}
        self.owed: dict[tuple[int, IntentRef], set[int]] = {}
        self.asked: list[Asked] = []
        self.answers: list[LookupAnswer] = []

    # Its life.

    def stop(self) -> None:
        """Gone, with everything in it. Who waits for an answer gets an error; answers that had arrived stay."""
        self._session = None
        self.answers += [_nothing(asked.lookup, "wrong_epoch") for asked in self.asked]
        self.asked = []
        self.owed = {}

    def start(self) -> None:
        answers = self.answers
        self._begin()
        self.answers = answers

    def evict(self) -> None:
        """Makes room: whatever no lease holds goes."""
        held = {
            key
            for ref, lease in self.leases.items()
            if ref.session == self._session and not lease.released and not lease.expired
            for key in lease.keys
        }
        for key in [key for key in self.sealed if key not in held]:
            self._discard(self.sealed.pop(key))

    def expire(self) -> None:
        """Its leases have run out: the tier no longer heard from who holds them."""
        for lease in self.leases.values():
            lease.expired = True

    def replace(self, number: int) -> None:
        """The page in this slot makes room, whoever may be reading it."""
        for key, slots in self.sealed.items():
            if number in slots:
                self._discard(self.sealed.pop(key))
                return

    def fill(self, truth: Sequence[int], end: int, key: bytes) -> None:
        """Another engine saved this page here."""
        if key not in self.sealed and key not in self.pending:
            rows = self._prefixes.page(truth[end - 1])
            self.sealed[key] = [self._slot(truth[end - 1], shard, list(rows)) for shard in range(self.shards)]

    def _slot(self, stamp: int, shard: int, rows: list[int]) -> int:
        if self._unused:
            number = self._unused.pop()
            slot = self.slots[number]
            slot.shard, slot.rows = shard, rows
        else:
            # The same numbers come again in the next life, with other generations.
            number, slot = len(self.slots), Slot(self._epoch * 1000, shard, rows)
            self.slots.append(slot)
        self._pages[number, slot.generation] = stamp
        return number

    def _discard(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.slots[number].generation += 1
            self.slots[number].rows = []
            self._unused.append(number)

    # Lookups.

    def answer(self, which: int, most: int, code: str) -> None:
        """Answers one of the open lookups: the prefix that is sealed here, at most `most` keys of it."""
        asked = self.asked.pop(which % len(self.asked))
        full = 0
        while full < min(len(asked.keys), most) and asked.keys[full] in self.sealed:
            full += 1
        keys = asked.keys[:full]
        tail = -1
        if full == len(asked.keys) and full < most:
            tail = next((place for place, key in enumerate(asked.tails) if key in self.sealed), -1)
            keys += asked.tails[tail : tail + 1] if tail >= 0 else []
        assert self._session is not None
        covered = self._prefixes.length(unhash(keys[-1][16:])) if keys else 0
        self.told[asked.request_id] = Told(self._session, asked.tokens, covered, code)
        if not keys:
            self.answers.append(_nothing(asked.lookup, code))
            return
        slots = array("I", [number for key in keys for number in self.sealed[key]])
        lease = LeaseRef(self._session, len(self.leases) + 1)
        self.leases[lease] = Lease(tuple(keys), slots)
        generations = array("Q", [self.slots[number].generation for number in slots])
        self.answers.append(LookupAnswer(asked.lookup, lease, full, tail, slots, generations, b"\0" * len(keys), code))

    def in_use(self, ref: LeaseRef) -> bool:
        lease = self.leases[ref]
        return lease.loading and not lease.released

    def page_of(self, slot: tuple[int, int]) -> list[int]:
        """The rows that the key of this slot, in this generation, stands for."""
        return self._prefixes.page(self._pages[slot]) if slot in self._pages else []

    # SchedulerBus.

    def wait_attached(self, timeout_s: float) -> AttachState:
        return AttachState.ATTACHED

    def session(self) -> SessionId | None:
        return self._session

    def publish_intent(
        self, keys: Sequence[bytes], rows: Sequence[int], stripes: Sequence[int], requests: Sequence[str], tails: int
    ) -> IntentRef | None:
        if self._session is None or not self.accepts:
            return None
        self.intents += 1
        ref = IntentRef(self._session, self.intents)
        self._keys[ref] = list(keys)
        shares: list[list[tuple[int, int]]] = [[] for _ in range(self._ranks)]
        for position, key in enumerate(keys):
            stamp = unhash(key[16:])
            self._verdict.demand(
                len(self._prefixes.page(stamp)) == rows[position], f"key of {requests[position]} with wrong rows"
            )
            if key in self.sealed or key in self.pending or not self.has_space:
                continue
            slots = [self._slot(stamp, shard, []) for shard in range(self.shards)]
            self.pending[key] = Pending(slots, self.shards)
            for share, (shard, stripe) in zip(shares, self._places, strict=True):
                if stripe is None or stripe == stripes[position]:
                    share.append((position, slots[shard]))
        for rank, share in enumerate(shares):
            positions, numbers = array("I", [place for place, _ in share]), array("I", [number for _, number in share])
            generations = array("Q", [self.slots[number].generation for number in numbers])
            self._grants[rank, ref] = Grant(ref, self.intents, positions, numbers, generations)
            self.owed[rank, ref] = set(positions)
        return ref

    def lookup(
        self, lookup: int, request_id: str, keys: Sequence[bytes], tails: Sequence[bytes], wait_s: float, expected: bool
    ) -> bool:
        if self._session is None:
            return False
        self.lookups += 1
        before = self.told.pop(request_id, None)
        self._seen["asked_again_grown"] += before is not None and before.tokens != self.requests[request_id].num_tokens
        self._seen["asked_again_drifted"] += before is not None and before.tokens == self.requests[request_id].num_tokens
        self.asked.append(Asked(lookup, request_id, self.requests[request_id].num_tokens, list(keys), list(tails)))
        return True

    def cancel(self, lookup: int) -> None:
        self.asked = [asked for asked in self.asked if asked.lookup != lookup]
        for answer in self.answers:
            if answer.lookup == lookup and answer.lease is not None:
                self.release(answer.lease)
        self.answers = [answer for answer in self.answers if answer.lookup != lookup]

    def loading(self, lease: LeaseRef) -> None:
        self._verdict.demand(not self.leases[lease].loading, f"{lease} is used twice")
        self._verdict.demand(not self.leases[lease].released, f"{lease} is used after its release")
        self.leases[lease].loading = True

    def release(self, lease: LeaseRef) -> None:
        self._verdict.demand(not self.leases[lease].released, f"{lease} is released twice")
        self.leases[lease].released = True

    def drain(self) -> list[LookupAnswer]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        pass

    # What a rank's bus asks.

    def grant(self, rank: int, ref: IntentRef) -> Grant | None:
        return self._grants.pop((rank, ref)) if ref.session == self._session else None

    def ended(self, rank: int, grant: Grant, positions: Sequence[int], good: bool) -> None:
        if grant.ref.session != self._session:
            return
        for position in positions:
            owed = self.owed[rank, grant.ref]
            self._verdict.demand(position in owed, f"rank {rank} answers twice for position {position} of {grant.ref}")
            owed.discard(position)
            key = self._keys[grant.ref][position]
            pending = self.pending[key]
            pending.left -= 1
            pending.good &= good
            if pending.left == 0:
                del self.pending[key]
                if pending.good:
                    self._seal(key, pending.slots)
                else:
                    self._discard(pending.slots)

    def _seal(self, key: bytes, slots: list[int]) -> None:
        stamp = unhash(key[16:])
        page = self._prefixes.page(stamp)
        for number in slots:
            rows = self.slots[number].rows[: len(page)]
            self._verdict.demand(rows == page, f"a page was sealed with rows {rows} instead of {page}")
        self.sealed[key] = slots
        if len(page) == len(self.slots[slots[0]].rows):
            self.sealed_full += 1
        else:
            self.sealed_tails += 1


def _nothing(lookup: int, code: str) -> LookupAnswer:
    return LookupAnswer(lookup, None, 0, -1, array("I"), array("Q"), b"", code)
