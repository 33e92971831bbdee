"""The tier and the scheduler half's bus to it. It seals what both ranks wrote, and looks at every page that it seals."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from pegaflow.connector.session import AttachState, Grant, IntentRef, LeaseRef, LookupAnswer, SessionId

from oracle.prefixes import Prefixes, unhash
from oracle.verdict import Verdict

FINGERPRINT = b"F" * 16


@dataclass(slots=True)
class Slot:
    """`generation` is raised before the slot may be written again; `stamp`: of the key it is for."""

    generation: int
    stamp: int
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


@dataclass(slots=True)
class Asked:
    lookup: int
    keys: list[bytes]
    tails: list[bytes]


class Tier:
    """Also the scheduler half's `SchedulerBus`."""

    def __init__(self, prefixes: Prefixes, verdict: Verdict, ranks: int, mla: bool) -> None:
        self._prefixes = prefixes
        self._verdict = verdict
        self._ranks = ranks
        self.shards = 1 if mla else ranks
        self._mla = mla
        self._epoch = 0
        self.leases: dict[LeaseRef, Lease] = {}
        self._intents = 0
        self.accepts = True
        self.has_space = True
        self.sealed_full = self.sealed_tails = 0
        self._begin()

    def _begin(self) -> None:
        self._epoch += 1
        self._session: SessionId | None = SessionId(self._epoch, 1)
        self.slots: list[Slot] = []
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
            key for ref, lease in self.leases.items() if ref.session == self._session and not lease.released for key in lease.keys
        }
        for key in [key for key in self.sealed if key not in held]:
            for number in self.sealed.pop(key):
                self.replaced(number)

    def replaced(self, number: int) -> None:
        slot = self.slots[number]
        slot.generation += 1
        slot.rows = []

    def fill(self, truth: Sequence[int], end: int, key: bytes) -> None:
        """Another engine saved this page here."""
        rows = self._prefixes.page(truth[end - 1])
        self.sealed[key] = [self._slot(truth[end - 1], list(rows)) for _ in range(self.shards)]

    def _slot(self, stamp: int, rows: list[int]) -> int:
        # The same numbers come again in the next life, with other generations.
        self.slots.append(Slot(self._epoch * 1000, stamp, rows))
        return len(self.slots) - 1

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
        if not keys:
            self.answers.append(_nothing(asked.lookup, code))
            return
        assert self._session is not None
        slots = array("I", [number for key in keys for number in self.sealed[key]])
        lease = LeaseRef(self._session, len(self.leases) + 1)
        self.leases[lease] = Lease(tuple(keys), slots)
        generations = array("Q", [self.slots[number].generation for number in slots])
        self.answers.append(LookupAnswer(asked.lookup, lease, full, tail, slots, generations, b"\0" * len(keys), code))

    def in_use(self, ref: LeaseRef) -> bool:
        lease = self.leases[ref]
        return lease.loading and not lease.released

    def page_of(self, slot: int) -> list[int]:
        """The rows that the key of this slot stands for."""
        return self._prefixes.page(self.slots[slot].stamp)

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
        self._intents += 1
        ref = IntentRef(self._session, self._intents)
        self._keys[ref] = list(keys)
        shares: list[list[tuple[int, int]]] = [[] for _ in range(self._ranks)]
        for position, key in enumerate(keys):
            stamp = unhash(key[16:])
            self._verdict.demand(
                len(self._prefixes.page(stamp)) == rows[position], f"key of {requests[position]} with wrong rows"
            )
            if key in self.sealed or key in self.pending or not self.has_space:
                continue
            slots = [self._slot(stamp, []) for _ in range(self.shards)]
            self.pending[key] = Pending(slots, self.shards)
            if self._mla:
                shares[stripes[position]].append((position, slots[0]))
            else:
                for rank, number in enumerate(slots):
                    shares[rank].append((position, number))
        for rank, share in enumerate(shares):
            positions, numbers = array("I", [place for place, _ in share]), array("I", [number for _, number in share])
            generations = array("Q", [self.slots[number].generation for number in numbers])
            self._grants[rank, ref] = Grant(ref, self._intents, positions, numbers, generations)
            self.owed[rank, ref] = set(positions)
        return ref

    def lookup(
        self, lookup: int, request_id: str, keys: Sequence[bytes], tails: Sequence[bytes], wait_s: float, expected: bool
    ) -> bool:
        if self._session is None:
            return False
        self.asked.append(Asked(lookup, list(keys), list(tails)))
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
