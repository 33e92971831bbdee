"""The words of a pool of movers: how a READ can end, what can happen, and what has to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType, TypeAlias

MoverNumber = NewType("MoverNumber", int)


class Outcome(StrEnum):
    """How a job ended: stable codes, used in logs and metric labels. In each of them the destination is quiet."""

    DONE = "done"  # all bytes are there (the caller still checks the lease and the checksum)
    PEER_UNREACHABLE = "peer_unreachable"  # nothing was posted: no connection, unusable metadata
    PEER_LOST = "peer_lost"  # posted and broken off
    BAD_DESCRIPTOR = "bad_descriptor"  # offsets or lengths outside a pool, overlapping destinations
    MOVER_DIED = "mover_died"  # the mover was reaped with the job open, or there is none
    BUSY_PEER = "busy_peer"  # this peer has a given-up READ, or too many are open
    LANDED_LATE = "landed_late"  # given up, then completed
    FAILED_LATE = "failed_late"  # given up, then failed, or never posted
    REAPED = "reaped"  # given up, then its mover was reaped


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. `retire_grace` should exceed the pin lease of a reader, `retire_limit` the READ deadline."""

    recycle_after_s: float = 10.0  # a given-up READ that has not ended by itself costs its mover
    quarantine_share: float = 1 / 8  # so do more of them at once, in destinations, as a fraction of the pool
    hung_after_s: float = 10.0  # a mover that has not answered for so long is killed
    retire_grace_s: float = 4.0
    retire_limit_s: float = 8.0
    respawn_first_s: float = 0.1
    respawn_max_s: float = 5.0
    healthy_after_s: float = 10.0


DEFAULT_LIMITS: Final = Limits()

# ---- events


@dataclass(frozen=True, slots=True)
class Start:
    """Have a mover from now on."""


@dataclass(frozen=True, slots=True)
class MoverReady:
    mover: MoverNumber


@dataclass(frozen=True, slots=True)
class MoverReaped:
    """waitpid returned, and everything the mover had said before was handled."""

    mover: MoverNumber


@dataclass(frozen=True, slots=True)
class ReadAsked:
    """`size`: bytes of its destination."""

    job: int
    peer: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class ReadEnded:
    mover: MoverNumber
    job: int
    outcome: Outcome
    text: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    job: int


@dataclass(frozen=True, slots=True)
class Recycle:
    """Retire the current mover and start a successor."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill everything; nothing is started again."""


Event: TypeAlias = Start | MoverReady | MoverReaped | ReadAsked | ReadEnded | DeadlinePassed | Recycle | Tick | Stop

# ---- commands


@dataclass(frozen=True, slots=True)
class Spawn:
    mover: MoverNumber


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL; `MoverReaped` follows."""

    mover: MoverNumber


@dataclass(frozen=True, slots=True)
class Announce:
    """This mover takes READs from now on: its metadata goes to other tiers."""

    mover: MoverNumber


@dataclass(frozen=True, slots=True)
class Post:
    mover: MoverNumber
    job: int


@dataclass(frozen=True, slots=True)
class GiveUpIn:
    mover: MoverNumber
    job: int


@dataclass(frozen=True, slots=True)
class Tell:
    """The last word about a job: its destination is quiet."""

    job: int
    outcome: Outcome
    text: str


Command: TypeAlias = Spawn | Kill | Announce | Post | GiveUpIn | Tell
