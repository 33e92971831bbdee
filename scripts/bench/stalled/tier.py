"""A pure tier with an engine, filled with pages, each of whose events is timed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.attach import Attach, Attached
from pegaflow.common.wire.messages.loads import Hits, Lookup
from pegaflow.common.wire.messages.saves import Grant, Intent, Written
from pegaflow.common.wire.version import PROTOCOL
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState

from stalled.recorder import Recorder

MODEL, OTHER = b"m" * 16, b"o" * 16
CHAIN = 64
SUM = b"s" * 16
EPOCH = 77


def keys_of(count: int, seed: int = 1, model: bytes = MODEL) -> list[bytes]:
    """As long and as even as vLLM's."""
    draw = random.Random(seed).randbytes
    return [model + draw(32) for _ in range(count)]


class Tier:
    """`granules` of pool; further options are those of `TierState`."""

    def __init__(self, granules: int, recorder: Recorder, **options: Any) -> None:
        numbers = itertools.count(1)
        place = Place("a", EPOCH, "pool", granules * GRANULE, "table", "i", "e", "c")
        self.state = TierState(place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, metaserver=True, **options)
        self.state.agent = Agent("a/77", b"blob", 0)
        self.recorder, self.now = recorder, 100.0
        self._numbers, self._seqs = itertools.count(1), dict[tuple[int, int], int]()
        self.members: dict[tuple[str, str], Attached] = {}
        self.feed(events.Backed(granules))

    def feed(self, event: events.Event) -> list[commands.Command]:
        """Its commands; what it asks to be resumed is, each time as an event of its own."""
        name = type(event.message).__name__ if isinstance(event, events.Asked | events.Published) else type(event).__name__
        out: list[commands.Command] = self.recorder.call(name, lambda: self.state.handle(event, self.now))
        if any(isinstance(command, commands.Resume) for command in out):
            out = [command for command in out if not isinstance(command, commands.Resume)]
            out += self.feed(events.Resumed())
        return out

    def ask(self, message: Any) -> Any:
        out = self.feed(events.Asked("asker", message))
        return next((command.message for command in out if isinstance(command, commands.Reply)), None)

    def tick(self, seconds: float = 0.02) -> list[commands.Command]:
        self.now += seconds
        return self.feed(events.Tick())

    def ticks(self, seconds: float = 0.02) -> None:
        """Until it rests."""
        self.tick(seconds)
        while self.state.rest(self.now) <= 0:
            self.tick()

    def fill(self, keys: Sequence[bytes]) -> None:
        """Sealed pages of one granule, in chains."""
        pages, out = self.state.pages, self.state._out
        for start in range(0, len(keys), CHAIN):
            pages.space.turn += 1
            parent = None
            for key in keys[start : start + CHAIN]:
                page = pages.reserve(key, PageState.PENDING, (GRANULE,), "", 0, parent)
                assert page is not None
                page.unwritten.clear()
                pages.seal(page, [SUM])
                parent = page
            pages.flush()
            out.clear()
        pages.beat()

    # --- engines -----------------------------------------------------------------------------------------------------

    def engine(self, name: str, model: bytes = MODEL, page: int = GRANULE) -> None:
        for role in ("scheduler", "rank"):
            nonce = f"{name}{role}".encode().ljust(16, b"-")
            fingerprint = model if role == "scheduler" else b""
            ask = Attach(
                PROTOCOL, "bench", name, role, 0, 0, 1, 0, 1, b"b" * 16, fingerprint, [], b"l" * 16, u32s([page]), "read_write",
                1, "0" * 32, nonce, 1,
            )  # fmt: skip
            answer = self.ask(ask)
            assert isinstance(answer, Attached)
            self.members[name, role] = answer
            self._seqs[answer.session, answer.member] = answer.first_seq

    def publish(self, name: str, role: str, message: Any) -> list[commands.Command]:
        one = self.members[name, role]
        seq = self._seqs[one.session, one.member]
        self._seqs[one.session, one.member] += 1
        return self.feed(events.Published(one.session, one.member, seq, one.token, message))

    def intent(self, keys: Sequence[bytes], name: str = "p") -> Grant:
        count, number = len(keys), next(self._numbers)
        ask = Intent(EPOCH, number, keys, u32s([16] * count), b"", [f"r{number}"], u32s([0] * count))
        out = self.publish(name, "scheduler", ask)
        return next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))

    def written(self, grant: Grant, name: str = "p") -> None:
        """All of it, checksums too."""
        session = self.members[name, "rank"].session
        slots, generations = u32s(grant.slots), u64s(grant.generations)
        for command in self.publish(name, "rank", Written(EPOCH, session, grant.grant, slots, generations, grant.marks)):
            if isinstance(command, commands.Hash):
                self.feed(events.Hashed(command.job, [SUM] * len(command.slots)))

    def lookup(self, keys: Sequence[bytes], name: str = "p") -> Hits:
        one, number = self.members[name, "scheduler"], next(self._numbers)
        hits = self.ask(Lookup(one.session, one.token, number, f"r{number}", keys, [], 1000, False))
        assert isinstance(hits, Hits)
        return hits

    def dies(self, name: str, role: str) -> None:
        one = self.members[name, role]
        self.feed(events.Proven(one.session, one.member))
