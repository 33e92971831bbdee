"""Counting server-sent events in bytes that are cut anywhere. Pure."""

from __future__ import annotations


class Events:
    """Of one stream whose lines end with a line feed."""

    __slots__ = ("_open", "count")

    def __init__(self) -> None:
        self.count = 0
        self._open = b""  # the first half of an event's end

    def feed(self, data: bytes) -> None:
        data = self._open + data
        self.count += data.count(b"\n\n")
        self._open = b"\n" if data.endswith(b"\n") and not data.endswith(b"\n\n") else b""
