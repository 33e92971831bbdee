"""Where a tier's events and commands have fault points (`common/faults.py`)."""

from __future__ import annotations

from typing import Any, Final

from pegaflow.common.fault_points import Point
from pegaflow.common.faults import NOWHERE, Around
from pegaflow.common.pool import SlotState
from pegaflow.common.wire.messages.attach import Ack, Alive, Attach, Attached, Detach, SessionBeat
from pegaflow.common.wire.messages.catalogue import CatalogueBeat, Delta, Sync, SyncChunk
from pegaflow.common.wire.messages.loads import Cancel, Hits, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import Abandoned, Grant, Intent, Written
from pegaflow.common.wire.messages.transfer import Pin, Pinned, Unpin
from pegaflow.services.tier import commands, events

_RECEIVED: Final[dict[type[Any], Around]] = {
    Attach: (Point.TIER_ATTACH_BEFORE_APPLIED, None),
    Alive: (Point.TIER_ALIVE_BEFORE_APPLIED, Point.TIER_ALIVE_AFTER_APPLIED),
    Detach: (Point.TIER_DETACH_BEFORE_APPLIED, Point.TIER_DETACH_AFTER_APPLIED),
    Intent: (Point.TIER_INTENT_BEFORE_APPLIED, Point.TIER_INTENT_AFTER_APPLIED),
    Written: (Point.TIER_WRITTEN_BEFORE_APPLIED, Point.TIER_WRITTEN_AFTER_APPLIED),
    Abandoned: (Point.TIER_ABANDONED_BEFORE_APPLIED, Point.TIER_ABANDONED_AFTER_APPLIED),
    Lookup: (Point.TIER_LOOKUP_BEFORE_APPLIED, Point.TIER_LOOKUP_AFTER_APPLIED),
    Loading: (Point.TIER_LOADING_BEFORE_APPLIED, Point.TIER_LOADING_AFTER_APPLIED),
    Release: (Point.TIER_RELEASE_BEFORE_APPLIED, Point.TIER_RELEASE_AFTER_APPLIED),
    Cancel: (Point.TIER_CANCEL_BEFORE_APPLIED, Point.TIER_CANCEL_AFTER_APPLIED),
    Pin: (Point.TIER_PIN_BEFORE_APPLIED, None),
    Unpin: (Point.TIER_UNPIN_BEFORE_APPLIED, Point.TIER_UNPIN_AFTER_APPLIED),
    Sync: (Point.TIER_SYNC_BEFORE_APPLIED, None),
}

_EVENTS: Final[dict[type[Any], Around]] = {
    events.Proven: (Point.TIER_MEMBER_DEAD_BEFORE_APPLIED, Point.TIER_MEMBER_DEAD_AFTER_APPLIED),
    events.Backed: (Point.TIER_BACKED_BEFORE_APPLIED, None),
    events.SlabFound: (Point.TIER_SLAB_BEFORE_ADOPTED, None),
    events.SlabsEnded: (Point.TIER_SLABS_BEFORE_ENDED, None),
    events.LockFree: (Point.TIER_OLD_WRITER_BEFORE_FREED, None),
    events.Hashed: (Point.TIER_HASHED_BEFORE_APPLIED, None),
    events.LocateAnswer: (Point.TIER_LOCATED_BEFORE_APPLIED, None),
    events.PinAnswer: (Point.TIER_PINNED_BEFORE_APPLIED, None),
    events.ReadEnded: (Point.TIER_READ_ENDED_BEFORE_APPLIED, Point.TIER_READ_ENDED_AFTER_APPLIED),
    events.DiskWritten: (Point.TIER_DISK_WRITTEN_BEFORE_APPLIED, Point.TIER_DISK_WRITTEN_AFTER_APPLIED),
    events.DiskReadEnded: (Point.TIER_DISK_READ_ENDED_BEFORE_APPLIED, None),
    events.SegmentFound: (Point.TIER_SEGMENT_BEFORE_ADOPTED, None),
    events.SegmentsEnded: (Point.TIER_SEGMENTS_BEFORE_ENDED, None),
}

_SENT: Final[dict[type[Any], Around]] = {
    Attached: (Point.TIER_ATTACHED_BEFORE_SENT, Point.TIER_ATTACHED_AFTER_SENT),
    SessionBeat: (Point.TIER_SESSION_BEAT_BEFORE_SENT, None),
    Grant: (Point.TIER_GRANT_AFTER_TABLE, Point.TIER_GRANT_AFTER_SENT),
    Ack: (Point.TIER_ACK_BEFORE_SENT, None),
    Delta: (Point.TIER_DELTA_BEFORE_SENT, Point.TIER_DELTA_AFTER_SENT),
    CatalogueBeat: (Point.TIER_CATALOGUE_BEAT_BEFORE_SENT, None),
    Hits: (Point.TIER_HITS_BEFORE_SENT, Point.TIER_HITS_AFTER_SENT),
    Pinned: (Point.TIER_PINNED_BEFORE_SENT, Point.TIER_PINNED_AFTER_SENT),
    SyncChunk: (Point.TIER_SYNC_CHUNK_BEFORE_SENT, Point.TIER_SYNC_CHUNK_AFTER_SENT),
}

_STORED: Final[dict[SlotState, Around]] = {
    SlotState.GRANTED: (Point.TIER_GRANT_BEFORE_TABLE, None),
    SlotState.READING: (Point.TIER_FETCH_BEFORE_TABLE, None),
    SlotState.SEALED: (Point.TIER_SEAL_BEFORE_TABLE, Point.TIER_SEAL_AFTER_TABLE),
    SlotState.QUARANTINED: (Point.TIER_QUARANTINE_BEFORE_TABLE, None),
    SlotState.FREE: (Point.TIER_FREE_BEFORE_TABLE, Point.TIER_FREE_AFTER_TABLE),
}
_EVICTED: Final[Around] = (Point.TIER_EVICT_BEFORE_TABLE, Point.TIER_EVICT_AFTER_TABLE)

_COMMANDS: Final[dict[type[Any], Around]] = {
    commands.Hash: (Point.TIER_HASH_BEFORE_STARTED, None),
    commands.Locate: (Point.TIER_LOCATE_BEFORE_SENT, None),
    commands.PinAt: (Point.TIER_PIN_BEFORE_SENT, None),
    commands.UnpinAt: (Point.TIER_UNPIN_BEFORE_SENT, None),
    commands.Read: (Point.TIER_READ_BEFORE_POST, Point.TIER_READ_AFTER_POST),
    commands.GiveUp: (Point.TIER_GIVE_UP_BEFORE_SENT, None),
    commands.DiskWrite: (Point.TIER_DISK_WRITE_BEFORE_POST, None),
    commands.DiskRead: (Point.TIER_DISK_READ_BEFORE_POST, None),
    commands.DiskGiveUp: (Point.TIER_DISK_GIVE_UP_BEFORE_SENT, None),
    commands.Forget: (Point.TIER_FORGET_BEFORE_UNLINK, Point.TIER_FORGET_AFTER_UNLINK),
}


def of_event(event: events.Event) -> Around:
    """Points around taking an event in, its commands carried out included."""
    match event:
        case events.Asked(_, message) | events.Published(message=message):
            return _RECEIVED.get(type(message), NOWHERE)
        case _:
            return _EVENTS.get(type(event), NOWHERE)


def of_command(command: commands.Command) -> Around:
    """Points around carrying a command out."""
    match command:
        case commands.Reply(_, message) | commands.Publish(_, message):
            return _SENT.get(type(message), NOWHERE)
        case commands.Table(evicted=True):
            return _EVICTED
        case commands.Table(_, _, entry):
            return _STORED.get(entry.state, NOWHERE)
        case _:
            return _COMMANDS.get(type(command), NOWHERE)
