"""The tier, pure: `handle(event, now) -> list[command]`.

    sessions   who is attached          saves    intents, grants, checksums     leases   what must not move
    pages      index, slots, recency    lookups  who waits for what             fetches  pages on their way from other tiers
    disk       pages that left memory

No sockets, no clock, no threads: time, randomness and results come in, commands go out and are carried out in order. `validate()`
checks every part and how they fit together; tests call it after each event.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, assert_never

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Ack, Alive, Attach, Detach, SessionBeat
from pegaflow.common.wire.messages.catalogue import Sync
from pegaflow.common.wire.messages.inspection import Find
from pegaflow.common.wire.messages.loads import Cancel, Done, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import Abandoned, Intent, Written
from pegaflow.common.wire.messages.space import Keep, Probe, Unkeep
from pegaflow.common.wire.messages.transfer import Pin, Take, Unpin
from pegaflow.services.tier import events, inspection
from pegaflow.services.tier.adoption import Adoption, Remains
from pegaflow.services.tier.commands import Command, Fail, Log, OpenTopic, Publish, Reply, Resume
from pegaflow.services.tier.departures import Departures
from pegaflow.services.tier.disk.level import DiskLevel, DiskOptions
from pegaflow.services.tier.draining import Draining
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.fetches import Fetches
from pegaflow.services.tier.finds import Finds
from pegaflow.services.tier.inspector import Inspector
from pegaflow.services.tier.keeping import Keeping
from pegaflow.services.tier.leases import Leases
from pegaflow.services.tier.lookups import Lookups
from pegaflow.services.tier.pages import TOPIC, Pages
from pegaflow.services.tier.pins import Agent, Pins
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.saves import Saves
from pegaflow.services.tier.scrubber import Scrubber
from pegaflow.services.tier.sessions import Member, Session, Sessions
from pegaflow.services.tier.snapshots import Snapshots
from pegaflow.services.tier.turns import Turns
from pegaflow.services.tier.verifier import Verifier

BEAT_S = 0.5
HISTORY = 16 << 20
LOOKUPS_SHARE = 8
"""One part in so many of the history's bytes is for the last lookups, the rest for the stories of pages."""
IDLE_TICK_S = 0.1
"""Between ticks nobody waits for: leases and promises last for seconds, and an idle tier costs what its ticks cost."""
_SPACE = SpaceOptions()
_NOTHING = Remains()
_NO_DISK = DiskOptions()


class TierState:
    """One life of one tier."""

    def __init__(
        self,
        place: Place,
        random: Callable[[int], bytes],
        topic: Callable[[int], bytes],
        *,
        metaserver: bool = False,
        fingerprint: bytes = b"",
        space: SpaceOptions = _SPACE,
        remains: Remains = _NOTHING,
        verify_every: int = 0,
        scrub_rate: float = 0.0,
        disk: DiskOptions = _NO_DISK,
        history: int = HISTORY,
    ) -> None:
        self.place = place
        self.agent: Agent | None = None
        self.counts: Counter[str] = Counter()
        self._out: list[Command] = []
        jobs = itertools.count(1)
        self.turns = Turns()
        past = history - history // LOOKUPS_SHARE
        self.pages = Pages(place.pool_bytes // GRANULE, self._out, self.counts, space, remains.floor, past)
        self.pages.chronicle.now = remains.at
        self.sessions = Sessions(topic, random, fingerprint)
        self.leases = Leases(self.pages, self.counts)
        self.lookups = Lookups(self.pages, self.leases, self._out, self.counts, jobs, metaserver, history - past)
        self.verifier = Verifier(self.pages, self._out, self.counts, jobs, self.lookups.wake, verify_every)
        self.scrubber = Scrubber(self.pages, self.verifier, self.counts, scrub_rate)
        self.disk = DiskLevel(self.pages, self._out, self.counts, jobs, self.lookups.wake, disk)
        self.pins = Pins(
            self.pages, self.leases, self.verifier, self.disk, self._out, self.counts, place.pool_bytes, remains.readers_until
        )
        self.adoption = Adoption(self.pages, self._out, self.counts, remains)
        self.saves = Saves(self.pages, self._out, self.counts, jobs, self.lookups.wake, self.verifier)
        self.fetches = Fetches(self.pages, self._out, self.counts, jobs, self.lookups.wake, self.lookups.failed)
        self.lookups.fetches, self.lookups.verifier, self.lookups.disk = self.fetches, self.verifier, self.disk
        self.disk.elsewhere = self.fetches.elsewhere
        self.draining = Draining(
            place.node, self.saves, self.lookups, self.leases, self.fetches, self._out, self.counts, jobs, self.adoption.going_on
        )
        self.departures = Departures(
            self.sessions, self.saves, self.lookups, self.leases, self._out, self.counts, self._session_beat, self._share
        )
        self._beat_at = 0.0
        self._resuming = False
        self._unacknowledged: dict[tuple[int, int], None] = {}
        self._snapshots, self._keeping = Snapshots(self.pages), Keeping(self.pages, self.disk)
        self._inspector, self._finds = Inspector(self), Finds(self.pages, self.disk, self._out)

    def handle(self, event: events.Event, now: float) -> list[Command]:
        """Takes one event in; returns what to do, in order. The caller owns the list."""
        self.pages.space.turn += 1
        self.pages.space.now = self.pages.chronicle.now = now
        self._event(event, now)
        while self._flush():
            self.lookups.run(now)
        self.lookups.run(now)
        self.pins.run(now)
        if not self._resuming and (self.lookups.behind or self._finds.behind or self.adoption.behind):
            self._resuming = True  # one at a time, whoever has more to do
            self._out.append(Resume())
        out = list(self._out)
        self._out.clear()
        return out

    def _flush(self) -> bool:
        """Publishes what changed and wakes those who wait for it. False: nothing had changed."""
        changed = self.pages.flush()
        for key in changed:
            self.lookups.wake(key)
        return bool(changed)

    def _event(self, event: events.Event, now: float) -> None:
        match event:
            case events.Asked():
                try:
                    self._asked(event.asker, event.message, now)
                except RemoteError as error:
                    self._out.append(Fail(event.asker, error.code, error.text))
            case events.Published():
                self._published(event, now)
            case events.Proven(session, member):
                self.departures.proven(session, member)
            case events.Backed():
                self.pages.allocator.grow(event.granules)
            case events.Hashed():
                if event.job in self.saves.hashing:
                    self.saves.hashed(event.job, event.checksums)
                elif event.job in self.fetches.verifying:
                    self.fetches.verified(event.job, event.checksums)
                elif event.job in self.verifier.open:
                    self.verifier.hashed(event.job, event.checksums, now)
            case events.SlabFound(first, size, rows):
                self.adoption.slab(first, rows, size)
            case events.SlabsEnded():
                self.adoption.scanned()
            case events.LockFree(holder):
                self.adoption.lock_free(holder, now)
            case events.NodesAnswer(job, nodes):
                self.draining.handover.nodes(job, nodes)
            case events.TakeAnswer(job, taken):
                self.draining.handover.taken(job, taken)
            case events.LocateAnswer(ask, found):
                if not self.draining.handover.located(ask, found):
                    self.lookups.located(ask, found, now)
            case events.Resumed():
                self._resuming = False
                self.lookups.resume(now)
                self._finds.resume()
                self.adoption.resume()
            case events.PinAnswer():
                self.fetches.pinned(event.fetch, event.answer, event.sent_at, now)
            case events.ReadEnded():
                self.fetches.read_ended(event.fetch, event.outcome, now)
            case events.DiskWritten(job, code):
                self.disk.written(job, code)
            case events.DiskReadEnded(job, found):
                self.disk.read_ended(job, found)
            case events.SegmentFound(number, size, records, begins):
                self.disk.found(number, size, records, begins)
            case events.PagesUndeciphered(count):
                self.counts["disk_wrong_key"] += count
            case events.SegmentsEnded():
                self.disk.all_found()
            case events.Tick():
                self._tick(now)
            case _:
                assert_never(event)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _asked(self, asker: Any, message: Any, now: float) -> None:
        match message:
            case Attach():
                self._attach(asker, message, now)
            case Detach():
                session = self.sessions.find(message.session, message.token)
                member = session.members.get(message.member)
                if member is not None:
                    self.departures.leave(session, member, unlink=True, why="its process left")
                self._done(asker)
            case Lookup():
                session = self.sessions.find(message.session, message.token)
                self.lookups.lookup(asker, session, message, now)
            case Loading():
                session = self.sessions.find(message.session, message.token)
                self.leases.loading(message.leases, session.number)
                self._done(asker)
            case Release():
                session = self.sessions.find(message.session, message.token)
                self.leases.release(message.leases, session.number)
                self._done(asker)
            case Cancel():
                session = self.sessions.find(message.session, message.token)
                self.lookups.cancel(session, message.lookups)
                self._done(asker)
            case Pin():
                self.pins.pin(asker, message, self.agent, now)
            case Unpin():
                self.leases.release([message.lease], 0)
                self._done(asker)
            case Take():
                self._out.append(Reply(asker, self.draining.take(message, now)))
            case Probe():
                self._out.append(Reply(asker, self._keeping.probe(message)))
            case Keep():
                self._out.append(Reply(asker, self._keeping.keep(message, now)))
            case Unkeep():
                self._keeping.unkeep(message)
                self._done(asker)
            case Sync():
                self._flush()
                self._out.append(Reply(asker, self._snapshots.chunk(message)))
            case Find():
                self._finds.find(asker, message)
            case _ if (answer := self._inspector.answer(message, now)) is not None:
                self._out.append(Reply(asker, answer))
            case _:
                self._out.append(Fail(asker, ErrorCode.UNSUPPORTED, f"a tier does not answer {message.KIND}"))

    def _done(self, asker: Any) -> None:
        self._out.append(Reply(asker, Done()))

    def _attach(self, asker: Any, ask: Attach, now: float) -> None:
        if self.draining.leaving:
            raise RemoteError(ErrorCode.DRAINING, "the tier is draining")
        for size in ask.page_bytes:
            if size and not self.pages.allocator.fits(-(-size // GRANULE)):
                raise RemoteError(
                    ErrorCode.POOL_TOO_SMALL,
                    f"pages of {size} bytes do not fit a pool of {self.place.pool_bytes} bytes: at most"
                    f" {self.pages.allocator.slab * GRANULE}; make the pool larger or the block size smaller",
                )
        session, member, new = self.sessions.attach(ask, now)
        if new:
            self.adoption.attached(member.holder, now)
            self._share()
            self._out.append(OpenTopic(session.topic))
            self._session_beat(session)  # the scheduler half counts who is there
            self._out.append(Log("attached", {"engine": ask.engine, "role": ask.role, "rank": ask.rank, "mode": ask.mode}))
        self._out.append(Reply(asker, self.place.attached(session, member)))

    def _share(self) -> None:
        self.pages.space.shares.active = frozenset(s.fingerprint for s in self.sessions.by_number.values() if s.fingerprint)

    # --- publications ------------------------------------------------------------------------------------------------

    def _published(self, event: events.Published, now: float) -> None:
        session = self.sessions.by_number.get(event.session)
        member = session.members.get(event.member) if session is not None else None
        if session is None or member is None or session.token != event.token:
            self.counts["foreign_publications"] += 1
            return
        message = event.message
        if isinstance(message, Alive):
            self._alive(session, member, message, now)
            return
        arrival = member.cursor.arrive(event.seq)
        self.counts[f"publications_{arrival}"] += 1
        if arrival == "apply":
            if isinstance(message, Intent):
                if message.epoch == self.place.epoch:
                    self.saves.intent(session, message, now)
            elif isinstance(message, Written | Abandoned):
                if message.epoch == self.place.epoch and message.session == session.number:
                    self.saves.ended(session, member, message)
            else:
                self.counts["bad_publications"] += 1
            # PERF: progress is acknowledged with the next tick, well before the publisher would repeat; a save of many pages says
            # `written` every few milliseconds, and each acknowledgement wakes every process of the engine.
            self._unacknowledged[session.number, member.number] = None
        else:
            self._ack(session, member)

    def _ack(self, session: Session, member: Member) -> None:
        session.events += 1
        self._out.append(Publish(session.topic, Ack(member.number, member.cursor.next)))

    def _alive(self, session: Session, member: Member, message: Alive, now: float) -> None:
        if message.epoch != self.place.epoch:
            return
        member.alive_at = now
        session.stale = session.stale and not self.sessions.believed(session, now)
        listed = set(message.grants)
        unlisted = {
            number
            for number in member.grants - listed
            if (grant := self.saves.grants.get(number)) is None or grant.event <= message.events_seen
        }
        if unlisted:
            self.counts["grants_unlisted"] += len(unlisted)
            self.saves.end_for(session, member, unlisted, "its process holds it no more")
        if member.role != "scheduler":
            return
        # A beat may have been under way for long: it says nothing of lookups that were sent after it, nor of their leases.
        leases, lookups = set(message.leases), set(message.lookups)
        self.leases.renew(leases, session.number, now)
        ended = [
            lease.number
            for lease in self.leases.of_session(session.number)
            if lease.number not in leases and lease.lookup not in lookups and lease.lookup <= message.lookups_through
        ]
        self.leases.release(ended, session.number)
        unwanted = [n for n in self.lookups.of_session(session) if n not in lookups and n <= message.lookups_through]
        self.lookups.cancel(session, unwanted)

    # --- time ------------------------------------------------------------------------------------------------------------

    def _acknowledge(self) -> None:
        for number, member in self._unacknowledged:
            session = self.sessions.by_number.get(number)
            if session is not None and member in session.members:
                self._ack(session, session.members[member])
        self._unacknowledged.clear()

    def _tick(self, now: float) -> None:
        self._acknowledge()
        self.leases.expire(now)
        self.pages.space.tick()
        self.disk.post()
        self.disk.tick(now)
        self.fetches.expire(now)
        self.lookups.tick(now)
        self.adoption.tick(now)
        self.scrubber.tick(now)
        self._snapshots.tick(now)
        self.draining.handover.tick(now)
        self.departures.tick(now)
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_S
        self.turns.mark(self.pages.space.turn, now)
        self._flush()
        self._out.append(Publish(TOPIC, self.pages.beat()))
        for session in self.sessions.by_number.values():
            self._session_beat(session)

    def rest(self, now: float) -> float:
        """Seconds for which no `Tick` is needed: none while somebody waits for one, and never past a beat."""
        if self._unacknowledged or self.lookups.open or self.fetches.open or self.pins.waiting or self.pages.space.trimming:
            return 0.0
        if self.draining.handover.collecting or self.departures.going_on or self.leases.behind:
            return 0.0
        return min(IDLE_TICK_S, self._beat_at - now)

    def _session_beat(self, session: Session) -> None:
        members = u32s(session.members)
        nexts = u64s(member.cursor.next for member in session.members.values())
        self._out.append(Publish(session.topic, SessionBeat(members, nexts)))

    # --- looking -----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Counts of everything that is held, for "nothing leaked" and for people."""
        return inspection.dump(self)

    def validate(self) -> None:
        inspection.validate(self)
