"""What a message costs the process that handles it: a line over its keys, per kind. Pure.

    seconds of an event = receive(keys) + handle[kind](keys) + for each command: send(keys), or store for one of the slot table

`handle` comes from timing the real `handle()` (measure.py); so do the others, from the real codec and real sockets. The figures
below are those of one run on the machine in docs/scaling.md, for tests and for those who want the same result twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.envelope import EventHeader, PublicationHeader, ReplyHeader, RequestHeader, encode
from pegaflow.common.wire.messages import attach, catalogue, loads, saves, transfer


class Line(NamedTuple):
    """`fixed` plus `each` per key."""

    fixed: float
    each: float = 0.0

    def at(self, keys: int) -> float:
        return self.fixed + self.each * keys


DEFAULT_RECEIVE, DEFAULT_SEND = Line(28e-6, 0.02e-6), Line(25e-6, 0.02e-6)
DEFAULT_STORE, DEFAULT_OTHER = Line(0.8e-6), Line(10e-6, 1e-6)


def _us(fixed: float, each: float = 0.0) -> Line:
    return Line(fixed * 1e-6, each * 1e-6)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. `wake`: of a process that has slept, on top of the event that wakes it. `speed`: how many times as fast as the
    measured core the simulated ones are."""

    receive: Line = DEFAULT_RECEIVE
    send: Line = DEFAULT_SEND
    store: Line = DEFAULT_STORE
    handle: Mapping[str, Line] = field(default_factory=lambda: DEFAULT_HANDLE)
    other: Line = DEFAULT_OTHER
    wake: float = 150e-6
    speed: float = 1.0

    def grained(self, grain: int) -> Costs:
        """Where one simulated page stands for `grain` pages."""
        if grain == 1:
            return self
        handle = {kind: Line(line.fixed, line.each * grain) for kind, line in self.handle.items()}
        receive, send, other = (Line(line.fixed, line.each * grain) for line in (self.receive, self.send, self.other))
        return Costs(receive, send, Line(self.store.fixed * grain), handle, other, self.wake, self.speed)

    def of_event(self, kind: str, keys: int) -> float:
        return (self.handle.get(kind) or self.other).at(keys) / self.speed

    def received(self, keys: int) -> float:
        return self.receive.at(keys) / self.speed

    def sent(self, keys: int) -> float:
        return self.send.at(keys) / self.speed

    @property
    def woken(self) -> float:
        return self.wake / self.speed

    @property
    def stored(self) -> float:
        return self.store.fixed / self.speed


DEFAULT_HANDLE: Mapping[str, Line] = {
    "metaserver.beat": _us(12),
    "metaserver.chunk": _us(49, 1.27),
    "metaserver.delta": _us(60, 4.5),
    "metaserver.delta_awaited": _us(171, 1.4),
    "metaserver.hello": _us(19),
    "metaserver.locate": _us(97, 0.8),
    "metaserver.tick": _us(13),
    "metaserver.work": _us(430),
    "tier.alive": _us(3.6),
    "tier.disk_read": _us(47, 0.5),
    "tier.disk_written": _us(8, 21),
    "tier.hashed": _us(30, 10),
    "tier.intent": _us(77, 23),
    "tier.loading": _us(9.7, 0.02),
    "tier.located": _us(8, 6.7),
    "tier.lookup": _us(39, 0.3),
    "tier.pin": _us(30, 2.3),
    "tier.pinned": _us(21, 1.7),
    "tier.read_ended": _us(11, 0.45),
    "tier.release": _us(7.7, 0.12),
    "tier.sync": _us(20, 0.6),
    "tier.tick": _us(15),
    "tier.unpin": _us(10),
    "tier.written": _us(16, 2.1),
}


def keys_of(message: Any) -> int:
    """How many keys (or slots, or leases) a message carries."""
    match message:
        case (
            catalogue.Locate() | catalogue.Delta() | catalogue.SyncChunk() | saves.Intent() | saves.IntentSeen() | transfer.Pin()
        ):
            return len(message.keys)
        case catalogue.Located():
            return len(message.states)
        case loads.Lookup():
            return len(message.keys) + len(message.tails)
        case loads.Hits() | saves.Written() | saves.Abandoned() | saves.Grant():
            return len(message.slots)
        case transfer.Pinned():
            return len(message.offsets)
    return 0


class Sizes:
    """Bytes on the wire per kind and keys, from the real codec: each kind encoded with 1 and with 129 keys."""

    def __init__(self, grain: int = 1, key_bytes: int = 48) -> None:
        self._grain = grain
        self._lines: dict[str, Line] = {}
        for one, many in zip(_samples(1, key_bytes), _samples(129, key_bytes), strict=True):
            small, large = _bytes(one), _bytes(many)
            keys = keys_of(many[0]) - keys_of(one[0])
            each = (large - small) / keys if keys else 0.0
            self._lines[one[0].KIND] = Line(small - each * keys_of(one[0]), each)

    def of(self, message: Any) -> float:
        return self._lines.get(message.KIND, Line(64)).at(self._grain * keys_of(message))


def _bytes(sample: tuple[Any, Any]) -> int:
    return sum(map(len, encode(*sample, b"c" if isinstance(sample[1], EventHeader) else b"")))


def _samples(count: int, key_bytes: int) -> list[tuple[Any, Any]]:
    keys = [i.to_bytes(key_bytes, "little") for i in range(count)]
    request, reply, event = RequestHeader(1, 1000, 1 << 60), ReplyHeader(1, 1 << 60), EventHeader("n123", 1 << 60, 1 << 20)
    said = PublicationHeader(1 << 60, 1, 1, bytes(16))
    tags, sizes, at, marks = bytes(count), u32s([1 << 20] * count), u64s([1 << 40] * count), bytes(8 * count)
    place, sums = "tcp://10.0.0.123:7400", bytes(16 * count)
    located = catalogue.Located(tags, 2, u32s([0] * 2 * count), ["n123"] * 2, u64s([1 << 60] * 2), [place] * 2)
    return [
        (catalogue.Locate("n123", keys, 5000, True), request),
        (located, reply),
        (catalogue.Delta(keys, tags, tags, sizes), event),
        (catalogue.CatalogueBeat(bytes(16), 1, 1), event),
        (catalogue.Hello("n123", 1 << 60, place, place, place, "0.1.0"), request),
        (catalogue.HelloAck(True), reply),
        (catalogue.Sync(1 << 60, 1, 1), request),
        (catalogue.SyncChunk(1 << 60, 1, 0, 1, 1, keys, tags, tags, sizes), reply),
        (transfer.Pin("n123", keys, 1, 4000), request),
        (transfer.Pinned(1, sizes, sizes, at, sizes, sums, "n123/0123456789abcdef", bytes(512), 1, 1), reply),
        (loads.Lookup(1 << 60, bytes(16), 1, "r", keys, [], 5000, True), request),
        (loads.Hits(1, 1, count, -1, 1, sizes, at, tags, ""), reply),
        (saves.Intent(1 << 60, 1, keys, sizes, tags, ["r"], sizes), said),
        (saves.Grant(1, 1, bytes(8), tags, 1, sizes, sizes, at, marks), event),
        (saves.Written(1 << 60, 1 << 60, 1, sizes, at, marks), said),
        (attach.Alive(1 << 60, 1, 1), said),
    ]
