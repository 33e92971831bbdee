"""A pool full of pages: what people ask, what other processes ask, and what the tier does by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pegaflow.common.lifecycle import collect_little_and_often
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.catalogue import NO_OWNER, SEALED, Located, NodeList, Sync
from pegaflow.common.wire.messages.inspection import Find, Inspect, Story
from pegaflow.common.wire.messages.loads import Release
from pegaflow.common.wire.messages.space import Keep, Probe, Unkeep
from pegaflow.common.wire.messages.transfer import Pin, Taken
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.exposition import TierCollector

from stalled.recorder import Collector, Recorder
from stalled.tier import OTHER, SUM, Tier, keys_of

LONG_PROMPT = 65_536  # keys of a prompt of a million tokens, at 16 a block


def run(pages: int) -> list[dict[str, Any]]:
    collect_little_and_often()
    recorder = Recorder()
    tier = Tier(pages, recorder)
    tier.engine("p")
    keys = keys_of(pages)
    collector = Collector()
    tier.fill(keys)
    recorder.rows += collector.rows("pages come, until the pool is full")
    few = min(LONG_PROMPT, pages // 8)
    looked(tier, recorder, keys, few)
    used(tier, recorder, keys, few)
    recorder.case("a snapshot for a metaserver", lambda: snapshot(tier, 1))
    recorder.case("the scrubber begins a round", lambda: scrub(tier))
    recorder.case("the node leaves: it hands over", lambda: hand_over(tier))
    evicted(tier, recorder, pages)
    return recorder.rows


def looked(tier: Tier, recorder: Recorder, keys: list[bytes], few: int) -> None:
    state = tier.state
    recorder.case("a beat", lambda: tier.tick(0.5), 3)
    recorder.case("status", lambda: recorder.call("dump", state.dump), 3)
    recorder.case("metrics", lambda: recorder.call("collect", lambda: list(TierCollector(state).collect())), 3)
    recorder.case("page find, nothing there", lambda: tier.ask(Find(b"\x01\x02\x03\x04\x05\x06")), 3)
    recorder.case("page inspect, 64 keys", lambda: tier.ask(Inspect(keys[:64])), 3)
    recorder.case("page story", lambda: tier.ask(Story(keys[-1])), 3)
    recorder.case(f"probe, {few} keys", lambda: tier.ask(Probe(keys[:few])), 3)


def used(tier: Tier, recorder: Recorder, keys: list[bytes], few: int) -> None:
    one = tier.members["p", "scheduler"]

    def load(wanted: list[bytes]) -> None:
        tier.ask(Release(one.session, one.token, u64s([tier.lookup(wanted).lease])))

    def loads() -> None:
        for start in range(0, 200 * 750, 750):
            load(keys[start % len(keys) :][:750])
        tier.tick()

    def keep() -> None:
        tier.ask(Keep(keys[:few], 1000))
        tier.ticks(2.0)
        tier.ask(Unkeep(keys[:few]))

    recorder.case(f"a lookup of {few} keys, and its release", lambda: load(keys[:few]), 3)
    recorder.case("200 lookups of 750 keys and their releases, then a tick", loads)
    recorder.case(f"keep {few} pages, until their time is over", keep)
    recorder.case("a pin of 8192 pages", lambda: tier.ask(Pin("b", keys[:8192], 1, 1000)))
    tier.ticks(100.0)


def scrub(tier: Tier) -> None:
    tier.state.scrubber.rate = float(1 << 30)
    for _ in range(3):
        for command in tier.tick(1.0):
            if isinstance(command, commands.Hash):
                tier.feed(events.Hashed(command.job, [SUM] * len(command.slots)))
    tier.state.scrubber.rate = 0.0


def snapshot(tier: Tier, number: int) -> None:
    chunks, chunk = 1, 0
    while chunk < chunks:
        chunks = tier.ask(Sync(9, number, chunk)).chunks
        chunk += 1


def hand_over(tier: Tier, rounds: int = 8) -> None:
    """Until the first pages are offered, and some rounds more; another node takes them."""
    draining = tier.state.draining
    tier.recorder.call("begin", lambda: draining.begin(True))
    seen: Counter[str] = Counter()
    while seen["Offer"] < rounds:
        todo = tier.tick()
        while todo:
            command = todo.pop()
            seen[type(command).__name__] += 1
            match command:
                case commands.AskNodes(job):
                    zeros = u64s([0])
                    nodes = NodeList(["b"], u64s([5]), ["up"], ["tcp://b"], ["x"], ["x"], zeros, zeros)
                    todo += tier.feed(events.NodesAnswer(job, nodes))
                case commands.Locate(ask, keys):
                    count = len(keys)
                    located = Located(bytes([SEALED]) * count, 1, u32s([NO_OWNER] * count), ["b"], u64s([5]), ["tcp://b"])
                    todo += tier.feed(events.LocateAnswer(ask, located))
                case commands.Offer(job, _, _, keys):
                    todo += tier.feed(events.TakeAnswer(job, Taken(len(keys))))
    tier.recorder.call("end", draining.end)


def evicted(tier: Tier, recorder: Recorder, pages: int) -> None:
    def save() -> None:
        for seed in range(4):
            tier.written(tier.intent(keys_of(1024, 100 + seed)))

    def trim() -> None:
        tier.state.pages.space.retune(SpaceOptions(evict_high=0.99, evict_low=0.98))
        tier.ticks()
        tier.state.pages.space.retune(SpaceOptions())

    recorder.case("4 intents of 1024 keys into a full pool", save)
    recorder.case("evicting ahead of need, a hundredth of the pool", trim)
    tier.engine("q", OTHER, 2 * GRANULE)
    recorder.case("another model's pages, twice as large: 256 into a full pool", lambda: other(tier, pages))


def other(tier: Tier, pages: int) -> None:
    for seed in range(1 + pages // 50 // 256):  # what is free, and then what is not
        tier.written(tier.intent(keys_of(256, 200 + seed, OTHER), "q"), "q")
