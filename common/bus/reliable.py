"""Reliable publication over PUB/SUB, pure: numbering, cumulative acknowledgement, repetition (docs/protocol.md 4.1, 4.2).

    publisher   SendWindow     push → due(now) → … → ack(next)
    receiver    ReceiveCursor  apply exactly `next`; lower: a duplicate, acknowledge again; higher: a gap, ask for `next` again

Go-back-N: a gap makes the publisher repeat from the oldest. What is dropped is dropped before it is numbered, so there are no
holes.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NamedTuple

WINDOW_MESSAGES = 1024
WINDOW_BYTES = 8 << 20
REPEAT_S = 0.05
REPEAT_MAX_S = 1.0


class Numbered(NamedTuple):
    seq: int
    kind: str
    body: bytes


class SendWindow:
    """Messages of one publisher that are not acknowledged yet."""

    def __init__(self, messages: int = WINDOW_MESSAGES, max_bytes: int = WINDOW_BYTES) -> None:
        self._limit, self._max_bytes = messages, max_bytes
        self._open: deque[Numbered] = deque()
        self._bytes = 0
        self._unsent = 0
        self._repeat_at = 0.0
        self._pause = REPEAT_S
        self.next_seq = 1
        self.repeated = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest(self) -> int:
        """The number the receiver must expect: the first not acknowledged, or the next to be given."""
        return self._open[0].seq if self._open else self.next_seq

    def has_room(self, size: int) -> bool:
        return len(self._open) < self._limit and self._bytes + size <= self._max_bytes

    def push(self, kind: str, body: bytes, *, must: bool = False) -> int | None:
        """Numbers a message and takes it in. None: the window is full and it was dropped before it got a number.

        `must` is for `written` and `abandoned`: they are bounded by the open grants and never dropped.
        """
        if not must and not self.has_room(len(body)):
            return None
        seq = self.next_seq
        self.next_seq += 1
        self._open.append(Numbered(seq, kind, body))
        self._bytes += len(body)
        self._unsent += 1
        return seq

    def due(self, now: float) -> list[Numbered]:
        """What to send now, in order: new messages, or everything open once the pause has passed."""
        if not self._open:
            return []
        if self._unsent < len(self._open) and now >= self._repeat_at:
            out = list(self._open)
            self.repeated += len(out) - self._unsent
            self._pause = min(self._pause * 2, REPEAT_MAX_S) if self._repeat_at else self._pause
        elif self._unsent:
            out = list(self._open)[-self._unsent :]
            if self._unsent < len(self._open):
                self._unsent = 0
                return out  # the pause of the older ones goes on
        else:
            return []
        self._unsent = 0
        self._repeat_at = now + self._pause
        return out

    def next_due(self) -> float | None:
        """When `due` has something again, if no message comes in; None: nothing is open."""
        return self._repeat_at if self._open else None

    def ack(self, next_seq: int, now: float) -> bool:
        """The receiver has everything below `next_seq`. True if that is progress: what is left gets its full pause again."""
        progress = False
        while self._open and self._open[0].seq < next_seq:
            self._bytes -= len(self._open.popleft().body)
            progress = True
        self._unsent = min(self._unsent, len(self._open))
        if progress:
            self._pause = REPEAT_S
            self._repeat_at = now + REPEAT_S if self._open else 0.0
        return progress

    def discard(self) -> None:
        """A new life of the receiver: what was open is void; numbers go on."""
        self._open.clear()
        self._bytes = self._unsent = 0
        self._repeat_at, self._pause = 0.0, REPEAT_S

    def validate(self) -> None:
        seqs = [message.seq for message in self._open]
        assert seqs == list(range(self.next_seq - len(seqs), self.next_seq)), "hole in the window"
        assert self._bytes == sum(len(message.body) for message in self._open)
        assert 0 <= self._unsent <= len(self._open)


class Arrival(StrEnum):
    APPLY = "apply"
    DUPLICATE = "duplicate"
    GAP = "gap"


class ReceiveCursor:
    """The receiver's side of one publisher."""

    def __init__(self, first: int) -> None:
        self.next = first

    def arrive(self, seq: int) -> Arrival:
        """Says what to do with a message of this number; APPLY moves on."""
        if seq == self.next:
            self.next += 1
            return Arrival.APPLY
        return Arrival.DUPLICATE if seq < self.next else Arrival.GAP
