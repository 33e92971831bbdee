"""Incremental parser of server-sent events (WHATWG HTML, section 9.2.6), for the `data` of each event.

Bytes arrive cut anywhere: within a line end, within a character. A line of any length is accepted (the ids of a
100,000-token prompt are one line of 800 kB) up to a bound that only a broken peer reaches.
"""

from __future__ import annotations

import re
from typing import Final

MAX_EVENT_BYTES: Final = 256 << 20
"""A million-token prompt's ids take about 8 MB; whatever is 30 times that is not an answer."""

_SHORT_BYTES: Final = 1 << 12
"""What is longer than that is not copied again and again while it grows."""
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


class StreamBroken(Exception):
    """The peer sent what is not an event stream."""


class EventParser:
    """Feed bytes, get the data of every event that is complete.

    Comments and the fields `event`, `id` and `retry` are read over: no OpenAI-compatible engine uses them.
    """

    __slots__ = ("_data", "_first", "_limit", "_pending", "_scanned", "_size", "_skip_newline")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._pending = bytearray()
        self._scanned = 0  # bytes of _pending known to hold no line end
        self._data: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._skip_newline = False
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completed, in order.

        Raises StreamBroken for an event above the limit or one that is not UTF-8.
        """
        if len(self._pending) < _SHORT_BYTES and not self._data and not self._skip_newline:
            events = self._usual(chunk)
            if events is not None:
                return events
        if self._skip_newline and chunk:
            # The line ended with a CR at the very end of the chunk before; this may be its LF.
            self._skip_newline = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        self._pending += chunk
        events = []
        start = 0
        for end in _LINE_END.finditer(self._pending, self._scanned):
            line = bytes(self._pending[start : end.start()])
            start = end.end()
            self._skip_newline = end.group() == b"\r" and start == len(self._pending)
            event = self._line(line)
            if event is not None:
                events.append(event)
        del self._pending[:start]
        self._scanned = len(self._pending)
        if self._scanned + self._size > self._limit:
            raise StreamBroken(f"an event exceeds {self._limit} bytes")
        return events

    @property
    def clean(self) -> bool:
        """True when the stream may end here: nothing of an unfinished event is left."""
        return not self._pending and not self._data

    def _usual(self, chunk: bytes) -> list[str] | None:
        """PERF: how engines write: events of one `data: ` line, ended by LF, many in one chunk. None: anything else."""
        text = bytes(self._pending) + chunk
        end = text.rfind(b"\n\n")
        rest = text[end + 2 :]
        if end < 0 or b"\r" in text or b"\n" in rest or len(rest) > self._limit:
            return None
        try:
            events = text[:end].decode("utf-8").split("\n\n")
        except UnicodeDecodeError:
            return None
        for event in events:
            if not event.startswith("data: ") or "\n" in event:
                return None
        self._first = False
        self._pending[:] = rest
        self._scanned = len(rest)
        return [event[6:] for event in events]

    def _line(self, line: bytes) -> str | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value) + 1
        return None

    def _dispatch(self) -> str | None:
        if not self._data:
            return None
        joined = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        try:
            return joined.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StreamBroken(f"an event is not UTF-8: {error}") from None
