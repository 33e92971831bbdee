"""The pure tier as a script: events in, commands out."""

from __future__ import annotations

import itertools
from typing import Any, Self

import xxhash
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.attach import Alive, Attach, Attached
from pegaflow.common.wire.messages.catalogue import SEALED, Delta, Located
from pegaflow.common.wire.messages.loads import Hits, Lookup
from pegaflow.common.wire.messages.saves import Grant, Intent, Written
from pegaflow.common.wire.messages.transfer import Pinned
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.adoption import Remains
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState

FINGERPRINT = b"f" * 16
NOTHING = Remains()
EPOCH = 77


def key(number: int) -> bytes:
    return FINGERPRINT + number.to_bytes(4, "big") * 8


def checksum(text: str) -> bytes:
    return bytes(xxhash.xxh3_128_digest(text.encode()))


class Script:
    """A tier of `pages` one-granule pages, and engines with `shards` ranks."""

    def __init__(
        self,
        pages: int = 64,
        shards: int = 1,
        metaserver: bool = False,
        fingerprint: bytes = b"",
        remains: Remains = NOTHING,
    ) -> None:
        numbers = itertools.count(1)
        place = Place("a", EPOCH, "pool", pages * GRANULE, "table", "i", "e", "c")
        self.tier = TierState(
            place,
            lambda n: next(numbers).to_bytes(n, "little"),
            session_topic,
            metaserver=metaserver,
            fingerprint=fingerprint,
            remains=remains,
        )
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.now, self.shards = 10.0, shards
        self.members: dict[tuple[str, str, int], Attached] = {}
        self.seqs: dict[tuple[int, int], int] = {}
        self.intents = itertools.count(1)
        self.feed(events.Backed(pages))

    def feed(self, event: events.Event) -> list[commands.Command]:
        out = self.last = self.tier.handle(event, self.now)
        self.tier.validate()
        return out

    def ask(self, message: Any) -> Any:
        """The reply, or the `Fail`; None: not answered yet."""
        for command in self.feed(events.Asked("asker", message)):
            if isinstance(command, commands.Reply):
                return command.message
            if isinstance(command, commands.Fail):
                return command
        return None

    def attach(self, engine: str = "p", role: str = "scheduler", rank: int = 0, **changes: Any) -> Any:
        count = self.shards if role == "scheduler" else 1
        fields: dict[str, Any] = {
            "protocol": 1,
            "package": "test",
            "engine": engine,
            "role": role,
            "rank": rank,
            "shard": rank,
            "shards": self.shards,
            "stripe": 0,
            "stripes": 1,
            "base": b"b" * 16,
            "fingerprint": FINGERPRINT if role == "scheduler" else b"",
            "factors": ["model=tiny"],
            "layouts": b"l" * 16 * count,
            "page_bytes": u32s([GRANULE] * count),
            "mode": "read_write",
            "pid": 1,
            "lock_name": "0" * 32,
            "nonce": f"{engine}{role}{rank}".encode().ljust(16, b"-"),
            "first_seq": 1,
        }
        answer = self.ask(Attach(**(fields | changes)))
        if isinstance(answer, Attached):
            self.members[engine, role, rank] = answer
            self.seqs.setdefault((answer.session, answer.member), answer.first_seq)
        return answer

    def engine(self, name: str = "p") -> Self:
        self.attach(name)
        for rank in range(self.shards):
            self.attach(name, "rank", rank)
        return self

    def publish(self, who: tuple[str, str, int], message: Any) -> list[commands.Command]:
        attached = self.members[who]
        at = (attached.session, attached.member)
        seq = 0
        if not isinstance(message, Alive):
            seq, self.seqs[at] = self.seqs[at], self.seqs[at] + 1
        return self.feed(events.Published(attached.session, attached.member, seq, attached.token, message))

    def intent(self, numbers: list[int], engine: str = "p", request: str = "r") -> Grant:
        keys = [key(n) for n in numbers]
        rows, owners = u32s([16] * len(keys)), u32s([0] * len(keys))
        out = self.publish((engine, "scheduler", 0), Intent(EPOCH, next(self.intents), keys, rows, b"", [request], owners))
        return next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))

    def word(
        self, grant: Grant, engine: str = "p", rank: int = 0, kind: Any = Written, changes: dict[str, Any] | None = None
    ) -> list[commands.Command]:
        session = self.members[engine, "rank", rank].session
        fields: dict[str, Any] = {
            "epoch": EPOCH,
            "session": session,
            "grant": grant.grant,
            "slots": u32s(grant.slots[rank :: self.shards]),
            "generations": u64s(grant.generations[rank :: self.shards]),
            "marks": grant.marks,
        }
        return self.publish((engine, "rank", rank), kind(**(fields | (changes or {}))))

    def hashed(self, out: list[commands.Command]) -> list[commands.Command]:
        done: list[commands.Command] = []
        for command in out:
            if isinstance(command, commands.Hash):
                done += self.feed(events.Hashed(command.job, [checksum(f"page {slot}") for slot in command.slots]))
        return done

    def save(self, numbers: list[int], engine: str = "p", request: str = "r") -> Grant:
        grant = self.intent(numbers, engine, request)
        for rank in range(self.shards):
            self.hashed(self.word(grant, engine, rank))
        return grant

    def lookup(
        self, numbers: list[int], tails: list[int] | None = None, engine: str = "p", wait_ms: int = 1000, expected: bool = False
    ) -> Any:
        attached = self.members[engine, "scheduler", 0]
        keys, ends = [key(n) for n in numbers], [key(n) for n in tails or []]
        self.looked = Lookup(attached.session, attached.token, next(self.intents), "r", keys, ends, wait_ms, expected)
        return self.ask(self.looked)

    def sealed(self) -> set[int]:
        return {int.from_bytes(k[16:20], "big") for k, page in self.tier.pages.index.items() if page.state == "sealed"}


def deltas(out: list[commands.Command]) -> list[tuple[bytes, int]]:
    return [
        (k, state)
        for command in out
        if isinstance(command, commands.Publish) and isinstance(command.message, Delta)
        for k, state in zip(command.message.keys, command.message.states, strict=True)
    ]


def hits(out: list[commands.Command]) -> list[Hits]:
    return [c.message for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Hits)]


def located(ask: commands.Locate, nodes: list[str]) -> events.LocateAnswer:
    """Every key is at every node, in this order."""
    states = bytes([SEALED] * len(ask.keys))
    owners = u32s(list(range(len(nodes))) * len(ask.keys))
    epochs, places = u64s([5] * len(nodes)), [f"tcp://{node}" for node in nodes]
    return events.LocateAnswer(ask.ask, Located(states, len(nodes), owners, nodes, epochs, places))


def pinned(pin: commands.PinAt, sums: list[bytes]) -> Pinned:
    count = len(pin.keys)
    positions, rows = u32s(range(count)), u32s([16] * count)
    offsets, lengths = u64s([0] * count), u32s([GRANULE] * count)
    agent = f"{pin.endpoint.removeprefix('tcp://')}/{pin.epoch:016x}"
    return Pinned(3, positions, rows, offsets, lengths, b"".join(sums), agent, b"blob", 0, 1 << 20)


def only(kind: type, out: list[commands.Command]) -> Any:
    found = [command for command in out if isinstance(command, kind)]
    assert len(found) == 1, out
    return found[0]
