"""How the scheduler half talks to the tier: intents out, lookups out, answers in. It never maps the pool."""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.attach import Alive
from pegaflow.common.wire.messages.loads import Cancel, Hits, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import Intent, keys_digest
from pegaflow.connector.link import Link
from pegaflow.connector.session import IntentRef, LeaseRef, LookupAnswer, Member, SessionId, TierOptions

RPC_MARGIN_S = 1.0
WINDOW_INTENTS = 512
WINDOW_BYTES = 6 << 20
_KEY_COST = 64


class SchedulerBus(Link):
    """The scheduler half's way to the tier: intents and lookups. It never maps the pool."""

    def __init__(
        self,
        options: TierOptions,
        member: Member,
        base: bytes,
        fingerprint: bytes,
        factors: Mapping[str, str],
        layouts: Sequence[bytes],
        page_bytes: Sequence[int],
        *,
        clock: Callable[[], float],
    ) -> None:
        """`layouts` (16 bytes each) and `page_bytes` per shard. Starts the thread; attaches in the background."""
        self._numbers = itertools.count(1)
        self._answers: deque[LookupAnswer] = deque()
        self._lookups: set[int] = set()
        self._sent_through = 0
        self._complete = False
        self._leases: set[LeaseRef] = set()
        self._unsent = 0
        self._unsent_bytes = 0
        super().__init__(options, member, base, fingerprint, dict(factors), b"".join(layouts), list(page_bytes), clock)

    # Scheduler's thread.

    def publish_intent(
        self, keys: Sequence[bytes], rows: Sequence[int], stripes: Sequence[int], requests: Sequence[str], tails: int
    ) -> IntentRef | None:
        """One intent for one step; `requests` names the request of each key. None: not published, nothing may be saved."""
        session = self.session()
        cost = len(keys) * _KEY_COST
        open_messages = len(self._outbox.window) + self._unsent
        if session is None or not self._complete or open_messages >= WINDOW_INTENTS or self._unsent_bytes + cost > WINDOW_BYTES:
            return None
        names = list(dict.fromkeys(requests))
        places = {name: i for i, name in enumerate(names)}
        owners = u32s(places[name] for name in requests)
        number = next(self._numbers)
        column = bytes(stripes) if any(stripes) else b""
        intent = Intent(session.epoch, number, list(keys), u32s(rows), column, names, owners, tails)
        self._unsent += 1
        self._unsent_bytes += cost
        self.post(lambda: self._send_intent(session, intent, cost))
        return IntentRef(session, number, keys_digest(intent.keys))

    def lookup(
        self, lookup: int, request_id: str, keys: Sequence[bytes], tails: Sequence[bytes], wait_s: float, expected: bool
    ) -> bool:
        """Sends a lookup; its answer comes out of `drain`. False: there is no tier, no answer will come."""
        session = self.session()
        if session is None:
            return False
        keys, tails = list(keys), list(tails)
        self.post(lambda: self._send_lookup(session, lookup, request_id, keys, tails, wait_s, expected))
        return True

    def cancel(self, lookup: int) -> None:
        """The answer is not wanted any more; a lease in it is released here."""
        self.post(lambda: self._cancel(lookup))

    def loading(self, lease: LeaseRef) -> None:
        """Ranks are about to copy from this lease."""
        self.post(lambda: self._say(lease, Loading))

    def release(self, lease: LeaseRef) -> None:
        """The lease is over."""
        self.post(lambda: self._release(lease))

    def drain(self) -> list[LookupAnswer]:
        """Answers since the last call; the caller owns their leases. Never blocks."""
        out: list[LookupAnswer] = []
        while self._answers:
            out.append(self._answers.popleft())
        return out

    # The link's thread.

    def _send_intent(self, session: SessionId, intent: Intent, cost: int) -> None:
        self._unsent -= 1
        self._unsent_bytes -= cost
        faults.reach(Point.CONNECTOR_INTENT_BEFORE_SENT)
        if self._session == session:
            self._publish(intent)

    def _send_lookup(
        self,
        session: SessionId,
        lookup: int,
        request_id: str,
        keys: list[bytes],
        tails: list[bytes],
        wait_s: float,
        expected: bool,
    ) -> None:
        attached = self._attached
        if self._session != session or attached is None:
            self._answers.append(_nothing(lookup, ErrorCode.NOT_ATTACHED))
            return
        self._lookups.add(lookup)
        self._sent_through = max(self._sent_through, lookup)
        ask = Lookup(attached.session, attached.token, lookup, request_id, keys, tails, max(0, int(wait_s * 1e3)), expected)
        try:
            faults.reach(Point.CONNECTOR_LOOKUP_BEFORE_SENT)
            self._rpc.send(ask, wait_s + RPC_MARGIN_S, lambda answer: self._answered(session, lookup, answer), session.epoch)
            faults.reach(Point.CONNECTOR_LOOKUP_AFTER_SENT)
        except Exception:  # who asked gets an answer; one that comes all the same finds nobody, and its lease is released
            self._lookups.discard(lookup)
            self._answers.append(_nothing(lookup, ErrorCode.INTERNAL))
            raise

    def _answered(self, session: SessionId, lookup: int, answer: Any) -> None:
        faults.reach(Point.CONNECTOR_HITS_BEFORE_APPLIED)
        wanted = lookup in self._lookups
        self._lookups.discard(lookup)
        if not isinstance(answer, Hits):
            code = answer.code if isinstance(answer, PegaflowError) else ErrorCode.BAD_MESSAGE
            if wanted:
                self._answers.append(_nothing(lookup, code))
            if isinstance(answer, PegaflowError):
                self._heard_error(answer)
            return
        lease = LeaseRef(session, answer.lease) if answer.lease else None
        if lease is not None:
            self._leases.add(lease)
        if not wanted:
            if lease is not None:
                self._release(lease)
            return
        code = answer.reason if answer.reason != ErrorCode.UNKNOWN else ""
        self._answers.append(
            LookupAnswer(lookup, lease, answer.full, answer.tail, answer.slots, answer.generations, answer.sources, code)
        )

    def _cancel(self, lookup: int) -> None:
        for answer in [answer for answer in tuple(self._answers) if answer.lookup == lookup]:
            self._answers.remove(answer)
            if answer.lease is not None:
                self._release(answer.lease)
        if lookup in self._lookups:
            self._lookups.discard(lookup)
            attached = self._attached
            if attached is not None:
                faults.reach(Point.CONNECTOR_CANCEL_BEFORE_SENT)
                message = Cancel(attached.session, attached.token, u64s([lookup]))
                self._rpc.send(message, self._options.request_timeout_s, lambda _: None, self._epoch)

    def _release(self, lease: LeaseRef) -> None:
        self._leases.discard(lease)
        self._say(lease, Release)

    def _say(self, lease: LeaseRef, kind: type[Loading] | type[Release]) -> None:
        attached = self._attached
        if attached is not None and lease.session == SessionId(self._epoch, attached.session):
            faults.reach(Point.CONNECTOR_LOADING_BEFORE_SENT if kind is Loading else Point.CONNECTOR_RELEASE_BEFORE_SENT)
            message = kind(attached.session, attached.token, u64s([lease.lease]))
            self._rpc.send(message, self._options.request_timeout_s, self._said, self._epoch)

    def _said(self, answer: Any) -> None:
        if isinstance(answer, PegaflowError):
            self._heard_error(answer)  # anything else `alive` heals

    def _alive(self, events_seen: int) -> Alive:
        leases = u64s(lease.lease for lease in self._leases)
        return Alive(self._epoch, events_seen, 0, u64s(), leases, u64s(self._lookups), self._sent_through)

    def _beat_of(self, members: int) -> None:
        # Until every rank is attached the tier would refuse every key, and what is refused is not offered again.
        self._complete = members >= 1 + self._member.shards * self._member.stripes

    def _void(self) -> None:
        self._complete = False
        self._leases.clear()
        for lookup in self._lookups:
            self._answers.append(_nothing(lookup, ErrorCode.WRONG_EPOCH))
        self._lookups.clear()


def _nothing(lookup: int, code: str) -> LookupAnswer:
    return LookupAnswer(lookup, None, 0, -1, array("I"), array("Q"), b"", str(code))
