"""Clone, pure: one tier's catalogue as a subscriber sees it (the Clone pattern of the ZeroMQ guide, inverted; protocol.md 5).

    tier   ──deltas, welcome, beats──▶  delta(), shows()       what changed, in order; the head
           ◀──Ask──────────────────┐
           ───chunks──────────────▶ chunk(), failed()          a snapshot in chunks, at most CREDIT on their way

    first event of an epoch ─▶ sync ─last chunk─▶ whole ─gap, lost tail, digest─▶ sync ─last chunk─▶ whole …
    another epoch           ─▶ nothing is known (at once), the old epoch is never accepted again

A sync fills a new generation beside the live one and takes its place with the last chunk. The deltas that come meanwhile are
buffered, the latest per key; those at or below the snapshot's head are dropped, the others applied. A sync begins with the first
event only: from then on the subscription is known to be active, so no delta can fall between snapshot and stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pegaflow.common.bus.generation import Generation, pack_entries
from pegaflow.common.bus.sync_gate import SyncGate
from pegaflow.common.wire.codec import Keys
from pegaflow.common.wire.messages.catalogue import PENDING, SEALED, CatalogueBeat, Delta, Sync, SyncChunk

CREDIT = 4
CHUNK_S = 1.0
JITTER_S = 0.5
REMEMBERED_EPOCHS = 16
_RETRY_S = 0.1
_RETRY_MAX_S = 2.0


class SyncReason(StrEnum):
    """Why a snapshot is taken."""

    FIRST = "first"
    NEW_EPOCH = "new_epoch"
    GAP = "gap"
    DIGEST = "digest"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ASKED = "asked"


class Ask(NamedTuple):
    """Send this to the tier's life `epoch`; answer with `chunk` or `failed`."""

    epoch: int
    sync: Sync


class Applied(NamedTuple):
    """The live generation took a delta."""

    keys: Keys
    states: bytes


class Wanted(NamedTuple):
    """A snapshot is wanted; for counting."""

    reason: SyncReason


class Swapped(NamedTuple):
    """A new generation is live: anything may have changed. `first`: it is the first of this epoch."""

    first: bool


class Voided(NamedTuple):
    """Everything known of this epoch is void."""

    epoch: int


Effect = Ask | Applied | Wanted | Swapped | Voided


@dataclass(slots=True)
class _Attempt:
    """A snapshot on its way. `asked`: chunk → when; `chunks` 0: the first one has not come yet."""

    sync_id: int
    generation: Generation
    asked: dict[int, float] = field(default_factory=dict)
    next_chunk: int = 0
    got: int = 0
    chunks: int = 0
    head: int = 0


class Clone:
    """One tier's catalogue. `left` are the epochs left behind; the caller may keep it longer than this object.

    `sync_ids` must not repeat while answers may be on their way; `generations` makes an empty generation in the store. Every
    method takes the time in seconds and, where a new snapshot may become necessary, a `jitter` of 0 to JITTER_S seconds; it
    returns what follows, in order.
    """

    def __init__(
        self,
        clone_epoch: int,
        sync_ids: Iterator[int],
        generations: Callable[[], Generation],
        left: deque[int] | None = None,
        gate: SyncGate | None = None,
    ) -> None:
        self.clone_epoch = clone_epoch
        self.epoch = 0
        self.whole = False
        self.seen = 0
        self.left: deque[int] = deque(maxlen=REMEMBERED_EPOCHS) if left is None else left
        self._sync_ids = sync_ids
        self._gate = gate or SyncGate()
        self._generations = generations
        self._live: Generation | None = None
        self._buffer: dict[bytes, tuple[int, int]] = {}
        self._since = 0  # every delta above this was seen and is remembered: a snapshot must begin here or later
        self._subscribed = False
        self._attempt: _Attempt | None = None
        self._start_at: float | None = None
        self._failures = 0
        self._disagreed = 0  # digests in a row that did not fit

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Generation | None:
        """The live generation; None without an epoch. Do not keep it over a swap."""
        return self._live

    @property
    def sealed(self) -> int:
        return self._live.counts[SEALED] if self._live is not None else 0

    @property
    def pending(self) -> int:
        return self._live.counts[PENDING] if self._live is not None else 0

    @property
    def syncing(self) -> bool:
        """A snapshot is wanted or on its way."""
        return self._attempt is not None or self._start_at is not None

    def next_due(self) -> float | None:
        """When `tick` has something to do."""
        if self._attempt is not None and self._attempt.asked:
            return min(self._attempt.asked.values()) + CHUNK_S
        return self._start_at

    # --- epochs ------------------------------------------------------------------------------------------------------

    def meet(self, epoch: int) -> list[Effect]:
        """The tier's life is known to be `epoch`: anything of another one is void. Nothing for an epoch left behind."""
        out: list[Effect] = []
        self._enter(epoch, out)
        return out

    def leave(self, *, for_good: bool) -> list[Effect]:
        """The tier is gone. `for_good`: this epoch is remembered like one that was replaced."""
        out: list[Effect] = []
        self._void(out, for_good)
        return out

    def _enter(self, epoch: int, out: list[Effect]) -> bool:
        if epoch == self.epoch:
            return epoch != 0
        if epoch == 0 or epoch in self.left:
            return False
        self._void(out)
        self.epoch = epoch
        self._live = self._generations()
        self._live.live()  # what the deltas say is a good hint before the first snapshot is in
        return True

    def _void(self, out: list[Effect], for_good: bool = True) -> None:
        if self.epoch:
            if for_good:
                self.left.append(self.epoch)
            out.append(Voided(self.epoch))
        self.epoch = self.seen = self._since = 0
        self.whole = self._subscribed = False
        if self._live is not None:
            self._live.void()
        self._live = self._start_at = None
        self._buffer.clear()
        self._abandon()
        self._failures = self._disagreed = 0

    def _abandon(self) -> None:
        if self._attempt is not None:
            self._attempt.generation.void()
            self._attempt = None
        self._gate.give(self)

    # --- events ------------------------------------------------------------------------------------------------------

    def delta(self, epoch: int, seq: int, delta: Delta | None, now: float, jitter: float) -> list[Effect]:
        """Event `seq` of the topic. None: a kind that this version does not know; it counts as seen."""
        out: list[Effect] = []
        if not self._enter(epoch, out):
            return out
        if not self._subscribed:
            self._subscribe(seq - 1, now, out)
        if seq <= self.seen:
            return out
        if seq > self.seen + 1:
            self._lost(seq - 1, now, jitter, out)
        self.seen = seq
        if delta is not None:
            entries = pack_entries(delta)
            if self._attempt is not None:
                self._buffer.update((key, (seq, entry)) for key, entry in entries.items())
            # Applied to the old generation as well: until the swap it is the best hint there is.
            if self._live is not None:
                self._live.put(entries.keys(), entries.values())
            out.append(Applied(delta.keys, delta.states))
        return out

    def shows(self, epoch: int, head: int, beat: CatalogueBeat | None, now: float, jitter: float) -> list[Effect]:
        """A welcome (no `beat`) or a heartbeat: the head, and the digest of the catalogue at that head."""
        out: list[Effect] = []
        if not self._enter(epoch, out):
            return out
        if not self._subscribed:
            self._subscribe(head, now, out)
        elif head > self.seen:
            self._lost(head, now, jitter, out)
            self.seen = head
        elif head == self.seen and beat is not None and self._live is not None and self.whole and not self.syncing:
            if self._live.agrees(beat):
                self._disagreed = 0
            else:
                # What a new snapshot did not cure, the next one will hardly: a tier with a wrong digest is asked less and less.
                pause = min(_RETRY_S * 2**self._disagreed, _RETRY_MAX_S) if self._disagreed else 0.0
                self._disagreed = min(self._disagreed + 1, 8)
                self._since = head
                self._want(SyncReason.DIGEST, now, pause + jitter, out)
        return out

    def _subscribe(self, head: int, now: float, out: list[Effect]) -> None:
        self._subscribed = True
        self.seen = self._since = head
        self._want(SyncReason.NEW_EPOCH if self.left else SyncReason.FIRST, now, 0.0, out)

    def _lost(self, through: int, now: float, jitter: float, out: list[Effect]) -> None:
        """Deltas at or below `through` are missing: only a snapshot that begins there or later has them."""
        self._since = through
        attempt = self._attempt
        if not self.syncing or (attempt is not None and attempt.chunks and attempt.head < through):
            self._want(SyncReason.GAP, now, jitter, out)

    # --- snapshot ----------------------------------------------------------------------------------------------------

    def _want(self, reason: SyncReason, now: float, pause: float, out: list[Effect]) -> None:
        self._abandon()
        self._start_at = now + pause
        out.append(Wanted(reason))
        self._start_if_due(now, out)

    def _start_if_due(self, now: float, out: list[Effect]) -> None:
        if self._start_at is not None and now >= self._start_at and self._gate.take(self):
            self._start_at = None
            # The tier's walk begins after all that was seen up to now: it need not be remembered, or a snapshot that never ends
            # and a storm of deltas would fill the memory.
            self._buffer.clear()
            self._since = self.seen
            self._attempt = _Attempt(next(self._sync_ids), self._generations())
            self._ask(self._attempt, now, out)

    def _ask(self, attempt: _Attempt, now: float, out: list[Effect]) -> None:
        limit = attempt.chunks or 1  # how many there are is known from the first one
        while attempt.next_chunk < limit and len(attempt.asked) < CREDIT:
            chunk = attempt.next_chunk
            attempt.next_chunk += 1
            attempt.asked[chunk] = now
            out.append(Ask(self.epoch, Sync(self.clone_epoch, attempt.sync_id, chunk)))

    def chunk(self, chunk: SyncChunk, now: float, jitter: float) -> list[Effect]:
        """The answer to an `Ask`; anything that was not asked for by the snapshot on its way is ignored."""
        out: list[Effect] = []
        attempt = self._attempt
        if (
            attempt is None
            or (chunk.clone_epoch, chunk.sync_id) != (self.clone_epoch, attempt.sync_id)
            or chunk.chunk not in attempt.asked
        ):
            return out
        if not attempt.chunks:
            attempt.chunks, attempt.head = chunk.chunks, chunk.head
        if chunk.chunks != attempt.chunks or chunk.head != attempt.head or chunk.chunk >= chunk.chunks:
            self._again(SyncReason.REFUSED, now, jitter, out)
            return out
        if attempt.head < self._since:
            self._want(SyncReason.GAP, now, jitter, out)
            return out
        del attempt.asked[chunk.chunk]
        attempt.got += 1
        entries = pack_entries(chunk)
        attempt.generation.put(entries.keys(), entries.values())
        if attempt.got == attempt.chunks:
            self._swap(attempt, out)
        else:
            self._ask(attempt, now, out)
        return out

    def _swap(self, attempt: _Attempt, out: list[Effect]) -> None:
        later = {key: entry for key, (seq, entry) in self._buffer.items() if seq > attempt.head}
        attempt.generation.put(later.keys(), later.values())
        self._buffer.clear()
        attempt.generation.live()
        if self._live is not None:
            self._live.void()
        self._live, self._attempt = attempt.generation, None
        self._gate.give(self)
        self._failures = 0
        self.seen = max(self.seen, attempt.head)
        out.append(Swapped(not self.whole))
        self.whole = True

    def failed(self, sync_id: int, now: float, jitter: float) -> list[Effect]:
        """A chunk will not come: begin again, later each time."""
        out: list[Effect] = []
        if self._attempt is not None and self._attempt.sync_id == sync_id:
            self._again(SyncReason.REFUSED, now, jitter, out)
        return out

    def _again(self, reason: SyncReason, now: float, jitter: float, out: list[Effect]) -> None:
        pause = min(_RETRY_S * 2**self._failures, _RETRY_MAX_S)
        self._failures = min(self._failures + 1, 8)
        self._want(reason, now, pause + jitter, out)

    def tick(self, now: float, jitter: float) -> list[Effect]:
        """Starts a snapshot that waited out its jitter, and gives up one whose chunk is late."""
        out: list[Effect] = []
        attempt = self._attempt
        if attempt is not None and attempt.asked and now >= min(attempt.asked.values()) + CHUNK_S:
            self._again(SyncReason.TIMEOUT, now, jitter, out)
        self._start_if_due(now, out)
        return out

    def resync(self, now: float) -> list[Effect]:
        """Somebody asks for a new snapshot. Nothing before the first event: that one brings it."""
        out: list[Effect] = []
        if self._subscribed:
            self._want(SyncReason.ASKED, now, 0.0, out)
        return out

    # --- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        assert self.epoch not in self.left, "an epoch left behind is live"
        assert len(self.left) <= REMEMBERED_EPOCHS
        assert (self._live is not None) == bool(self.epoch)
        assert self.epoch or not (self.whole or self.syncing or self._subscribed)
        assert self._subscribed or not (self.whole or self.syncing or self.sealed or self.pending)
        assert not self._subscribed or self.whole or self.syncing, "nothing will ever make this clone whole"
        assert self._since <= self.seen
        assert self.syncing or not self._buffer
        assert all(seq <= self.seen for seq, _ in self._buffer.values())
        if self._live is not None:
            self._live.validate()
        attempt = self._attempt
        if attempt is not None:
            assert self._start_at is None
            assert 1 <= len(attempt.asked) <= CREDIT
            assert attempt.got + len(attempt.asked) == attempt.next_chunk <= (attempt.chunks or 1)
            assert not attempt.chunks or attempt.head >= self._since
            attempt.generation.validate()
