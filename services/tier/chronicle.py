"""The chronicle, pure: what became of pages, for whoever asks why one is not here.

    note(step, keys, who) ─▶ the batch that is open ─another step, turn or who─▶ packed, 16 bytes a page ─limit─▶ forgotten

Only batches are written, so a page costs a slice of its key and no object of its own. A page is told apart by 16 bytes of its
key: 8 of the fingerprint, 8 of the content hash. To read one story walks over all batches, some milliseconds: people ask for it,
requests do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pegaflow.common.wire.messages.inspection import Step

Who = tuple[str | int, ...]
"""For whom, from whom or why: parts that stand in the caller's hands anyway; `shown` when somebody asks."""

MARK = slice(8, 24)
_MARK_BYTES = 16
OVERHEAD = 310
"""Bytes of a batch besides its marks: tuple, numbers, the marks' own head, the ring's place."""
_MAX_OPEN = 4096


_Batch = tuple[float, Step, Who, bytes, int]
"""Time, step, who, marks, and the bytes that it counts for."""


class Event(NamedTuple):
    """One step of a story, at the tier's clock."""

    at: float
    step: Step
    who: Who


class Chronicle:
    """At most `limit` bytes of the past; 0: nothing is noted. `now` is the time of the event that is being handled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.now = 0.0
        self.bytes = 0
        self.noted = 0
        self._batches: deque[_Batch] = deque()
        self._keys: list[bytes] = []
        self._at, self._step, self._who = 0.0, Step.GRANTED, Who()

    def note(self, step: Step, keys: Sequence[bytes], who: Who = ()) -> None:
        """These pages have taken this step, in this order; the keys are not kept."""
        if not self._limit or not keys:
            return
        if step is not self._step or self.now != self._at or who != self._who or len(self._keys) >= _MAX_OPEN:
            self._close()
            self._at, self._step, self._who = self.now, step, who
        self._keys += keys

    def one(self, step: Step, key: bytes, who: Who = ()) -> None:
        """The same for one page."""
        # PERF: pages are evicted one by one, many in a turn.
        if step is self._step and self.now == self._at and who == self._who and len(self._keys) < _MAX_OPEN:
            if self._limit:
                self._keys.append(key)
        else:
            self.note(step, [key], who)

    def _close(self) -> None:
        if not self._keys:
            return
        marks = b"".join([key[MARK] for key in self._keys])
        if len(marks) != _MARK_BYTES * len(self._keys):  # a short key
            marks = b"".join([_mark(key) for key in self._keys])
        self.noted += len(self._keys)
        self._keys.clear()
        size = OVERHEAD + len(marks)
        for part in self._who:
            if type(part) is str:
                size += len(part)
        self.bytes += size
        batches = self._batches
        batches.append((self._at, self._step, self._who, marks, size))
        while self.bytes > self._limit and batches:
            self.bytes -= batches.popleft()[4]

    def story(self, key: bytes) -> list[Event]:
        """What is remembered of this page, the oldest step first."""
        self._close()
        mark = _mark(key)
        found = [batch for batch in self._batches if mark in batch[3]]
        return [Event(at, step, who) for at, step, who, marks, _ in found for _ in _within(marks, mark)]

    @property
    def since(self) -> float:
        """The time of the oldest step that is remembered; now, if there is none."""
        return self._batches[0][0] if self._batches else self.now

    def validate(self) -> None:
        assert self.bytes == sum(batch[4] for batch in self._batches) <= self._limit
        assert all(batch[3] and len(batch[3]) % _MARK_BYTES == 0 for batch in self._batches)
        assert not self._keys or self._limit


def _mark(key: bytes) -> bytes:
    return key[MARK].ljust(_MARK_BYTES, b"\0")


def _within(marks: bytes, mark: bytes) -> Iterator[int]:
    at = marks.find(mark)
    while at >= 0:
        if at % _MARK_BYTES == 0:
            yield at
        at = marks.find(mark, at + 1)
