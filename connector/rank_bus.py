"""How a rank talks to the tier: grants in, last words out; and its only way to the pool's memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.common.pool import PoolView
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages import saves
from pegaflow.common.wire.messages.attach import Alive, Attached
from pegaflow.common.wire.messages.saves import KEY_MARK_BYTES, Abandoned, Written
from pegaflow.connector.link import Link
from pegaflow.connector.session import Grant, IntentRef, Member, SessionId, TierOptions

UNCLAIMED_S = 120.0
POPULATE_BYTES = 64 << 20
BACKED_S = 0.1
CLOSED_KEPT = 4096


class _Held(NamedTuple):
    """A grant that nobody has taken yet."""

    grant: Grant
    digest: bytes
    at: float


class RankBus(Link):
    """One rank's way to the tier, and the only way to the pool's memory."""

    def __init__(
        self,
        options: TierOptions,
        member: Member,
        base_fingerprint: bytes,
        layout: bytes,
        page_bytes: int,
        *,
        clock: Callable[[], float],
        on_backed: Callable[[PoolView, int, int], None] | None = None,
        on_leave: Callable[[], None] | None = None,
        gpu: bool = False,
    ) -> None:
        """`on_backed` hears in a thread of its own which bytes of a mapping have memory by now, POPULATE_BYTES at a time at most;
        `on_leave` that the mapping is about to go. `gpu`: a device copies into the pool."""
        self._on_backed, self._on_leave = on_backed, on_leave
        self._populating: threading.Thread | None = None
        self._grants: dict[int, _Held] = {}
        self._closed: OrderedDict[int, None] = OrderedDict()
        self._closed_through = 0
        self._owed: dict[int, set[int]] = {}  # grant of this session → positions without a last word; guarded by `_changed`
        self._telling: dict[int, int] = {}  # grant → number of its last word, until that is acknowledged
        super().__init__(options, member, base_fingerprint, b"", {}, layout, [page_bytes], clock, gpu)

    def close(self) -> None:
        super().close()
        if self._populating is not None:  # the session is over, so it ends by itself
            self._populating.join()

    # Copy thread.

    def pool(self) -> PoolView | None:
        """The mapping of the session that can be used now."""
        return self._pool.view if self._session is not None else None

    @property
    def open_grants(self) -> int:
        """Grants that this rank has not answered in full."""
        with self._changed:
            return sum(1 for owed in self._owed.values() if owed)

    def take_grant(self, ref: IntentRef, deadline: float) -> Grant | None:
        """Waits for the grant. None: not here in time, or the session is over; a late one is answered `abandoned` here."""

        def there() -> bool:
            return ref.intent in self._grants or self._session != ref.session

        with self._changed:
            self._changed.wait_for(there, max(0.0, deadline - self._clock()))
            self._close_intent(ref.intent)
            if self._session != ref.session:
                return None  # one that came while this rank was still joining is answered once it has joined
            held = self._grants.pop(ref.intent, None)
            if held is None:
                return None
            grant, digest = held.grant, held.digest
        if ref.digest != digest:  # the grant is for another key list: nothing may be written under it
            self.abandoned(grant, grant.positions)
            return None
        return grant

    def written(self, grant: Grant, positions: Sequence[int]) -> None:
        """This rank's last touch of these slots: the bytes are in."""
        self._last_word(grant, positions, Written)

    def abandoned(self, grant: Grant, positions: Sequence[int]) -> None:
        """This rank's last touch of these slots: the bytes are not usable."""
        self._last_word(grant, positions, Abandoned)

    def _last_word(self, grant: Grant, positions: Sequence[int], kind: type[Written] | type[Abandoned]) -> None:
        with self._changed:
            if grant.ref.session != self._session:
                return  # grant ids begin anew with each life of the tier: this one may name another grant there
            owed = self._owed.get(grant.grant, set())
            said = [position for position in positions if position in owed]
            owed.difference_update(said)
        if said:
            self.post(lambda: self._tell(grant, said, kind))

    def _close_intent(self, intent: int) -> None:
        self._closed[intent] = None
        self._closed_through = max(self._closed_through, intent)
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)

    # The link's thread.

    def _map(self, attached: Attached) -> None:
        self._pool.map(attached, self._options.mode != "read")

    def _joined(self, session: SessionId) -> None:
        with self._changed:  # the scheduler half may join first: grants have come that nobody could take, and nobody waits for
            late = [held.grant for intent, held in self._grants.items() if intent in self._closed]
            for grant in late:
                del self._grants[grant.ref.intent]
        for grant in late:
            self.abandoned(grant, grant.positions)
        self._populating = threading.Thread(target=self._populate, args=(session,), name="pegaflow-populate", daemon=True)
        self._populating.start()

    def _populate(self, session: SessionId) -> None:
        """A thread of its own, beside the first steps: what the tier has backed by now gets page table entries, and is pinned."""
        done = 0
        while (view := self.begin_copy(session)) is not None:
            try:
                step = min(POPULATE_BYTES, view.backed - done)
                if step > 0:
                    view.populate(done, step)
                    if self._on_backed is not None:
                        self._on_backed(view, done, step)
                    done += step
                whole = done >= len(view.memory)
            finally:
                self.end_copy()
            if whole:
                return
            if step <= 0:
                with self._changed:  # the tier backs more, or the session ends
                    self._changed.wait(BACKED_S)

    def _unmap(self) -> bool:
        if self._on_leave is not None and self._pool.view is not None:
            self._on_leave()
        return super()._unmap()

    def _event(self, message: Any) -> None:
        if not isinstance(message, saves.Grant) or self._attached is None:
            return
        faults.reach(Point.CONNECTOR_GRANT_BEFORE_APPLIED)
        shard, stripe, shards = self._member.shard, self._member.stripe, message.shards
        mine = [i for i in range(len(message.positions)) if (message.stripes[i] if message.stripes else 0) == stripe]
        session = SessionId(self._epoch, self._attached.session)
        grant = Grant(
            IntentRef(session, message.intent),
            message.grant,
            u32s(message.positions[i] for i in mine),
            u32s(message.slots[i * shards + shard] for i in mine),
            u64s(message.generations[i * shards + shard] for i in mine),
            b"".join(message.marks[KEY_MARK_BYTES * i : KEY_MARK_BYTES * (i + 1)] for i in mine),
        )
        now = self._clock()
        with self._changed:
            if mine:
                self._owed[message.grant] = set(grant.positions)
            late = message.intent in self._closed or (
                self._closed_through - message.intent > CLOSED_KEPT and message.intent not in self._grants
            )
            late = late and self._session is not None
            if not late:
                self._grants[message.intent] = _Held(grant, message.digest, now)
                self._changed.notify_all()
            unclaimed = [held.grant for held in self._grants.values() if now - held.at > UNCLAIMED_S]
            for held in unclaimed:
                del self._grants[held.ref.intent]
                self._close_intent(held.ref.intent)
        for left in [grant] if late else unclaimed:
            self.abandoned(left, left.positions)

    def _tell(self, grant: Grant, positions: list[int], kind: type[Written] | type[Abandoned]) -> None:
        if self._session != grant.ref.session:
            return  # a new life of the tier: the grant is void, and its slots are out of use there
        at = {position: i for i, position in enumerate(grant.positions)}
        picks = [at[position] for position in positions]
        seq = None
        try:
            faults.reach(Point.CONNECTOR_WRITTEN_BEFORE_SENT if kind is Written else Point.CONNECTOR_ABANDONED_BEFORE_SENT)
            seq = self._publish(
                kind(
                    grant.ref.session.epoch,
                    grant.ref.session.session,
                    grant.grant,
                    u32s(grant.slots[i] for i in picks),
                    u64s(grant.generations[i] for i in picks),
                    b"".join(grant.marks[KEY_MARK_BYTES * i : KEY_MARK_BYTES * (i + 1)] for i in picks),
                )
            )
        finally:
            # Also where the word was lost: nothing is owed any more, `alive` lists the grant no longer, and so the tier ends it.
            with self._changed:
                if not self._owed.get(grant.grant):
                    self._owed.pop(grant.grant, None)
                    if seq is not None:
                        self._telling[grant.grant] = seq

    def _acked(self, following: int) -> None:
        super()._acked(following)
        oldest = self._outbox.window.oldest
        for number in [number for number, seq in self._telling.items() if seq < oldest]:
            del self._telling[number]

    def _alive(self, events_seen: int) -> Alive:
        with self._changed:
            grants = u64s([*self._owed, *self._telling])
        return Alive(self._epoch, events_seen, self._closed_through, grants)

    def _void(self) -> None:
        with self._changed:
            self._grants.clear()
            self._owed.clear()
            self._telling.clear()
            self._changed.notify_all()
