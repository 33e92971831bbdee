"""What the load tracker wants done, and what it answers to vLLM's question. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pegaflow.connector.load_plan import LoadPlan
from pegaflow.connector.session import LeaseRef


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this lookup."""

    lookup: int
    request_id: str
    plan: LoadPlan


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this lookup any more. `reason`: a stable code."""

    lookup: int
    reason: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Release:
    """Give this lease back."""

    lease: LeaseRef


@dataclass(frozen=True, slots=True)
class Load:
    """Tell the ranks to copy pages into blocks, and the tier that the lease is in use.

    Page i goes to `blocks[i]`; its slots are `slots[i * shards : (i + 1) * shards]`, generations beside them. `tail`:
    the last page is a tail. With `refuse` there is nothing to copy: every rank reports the receive as failed for that
    reason.
    """

    request_id: str
    blocks: tuple[int, ...]
    lease: LeaseRef | None
    slots: Sequence[int]
    generations: Sequence[int]
    tail: bool
    refuse: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """These blocks of the request, [first, last), came from the tier as full pages.

    A block whose tail page was loaded is not among them: once it has filled up, its full page is another key, and new.
    """

    request_id: str
    first: int
    last: int


Command = Ask | Cancel | Release | Load | Loaded


@dataclass(frozen=True, slots=True)
class Match:
    """Answer to vLLM's question how much can be loaded.

    `tokens` None: not known yet. `ask`: make a (new) lookup first, then put the question again. `refuse`: strict
    decode, `tokens` are claimed in order to be failed for this reason.
    """

    tokens: int | None
    ask: bool = False
    refuse: str = ""
    commands: tuple[Command, ...] = ()
