"""The script of the validation, and how the simulation plays it: two tiers, one metaserver, two engines of one rank, no model.

    round     a: intent, grant, written ▶ a: lookup (answered once sealed) ▶ b: lookup (fetched from a) ▶ b: lookup again
    flood     many locates, then many saves at a, all at once
    restart   the metaserver is killed, begins again with nothing, and hears of everything that a and b have by then

Each line waits for the one before and PAUSE_S more. Times are taken from the second and third lookup; then messages and CPU.
Router, engines with a model, evictions, disk and several metaservers are in no part of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.wire.messages.catalogue import Locate
from pegaflow.common.wire.messages.loads import Hits

from simulation.connector import Connector
from simulation.costs import Costs, Sizes
from simulation.figures import Hardware, Model
from simulation.metaserver import SimMetaserver
from simulation.replicas import Replicas
from simulation.tally import Tally
from simulation.tier import SimTier
from simulation.workload import block_key
from simulation.world import Asker, World

SIZES = (1, 16, 128)
FLOOD_KEYS = 64
FLOOD: Mapping[str, int] = {"locate": 2000, "save": 300}
PAUSE_S = 0.004
IDLE_S = 3.0
RESTARTS = 8
PAGE_BYTES = 16384
MOVER = 3e9
"""Bytes per second that a mover reads over loopback: set by hand, not measured. Of the largest lookup (2 MiB) it is 0.7 ms."""
POOL_BYTES = 1 << 30
TIER_COUNTS = ("lookups", "granted", "sealed", "pinned", "fetched", "fetch_failed", "publications_apply")
METASERVER_COUNTS = ("deltas", "locates")


@dataclass(slots=True)
class Played:
    """Seconds of each remote and each local lookup by size; counts by process; CPU seconds by process, idle ones left out."""

    remote: dict[int, list[float]] = field(default_factory=dict)
    local: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    restarts: list[tuple[float, float]] = field(default_factory=list)
    """Seconds from the first sign of a new metaserver until it knows of a node, and until it is whole."""
    flood: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each of many things that come at once: of a locate, of the deltas of a save, of a save at its tier."""


def picked(document: dict[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    """Some counts of a tier or metaserver. A locate may find its page sealed, or pending and wait for it: one locate."""
    counts = dict(document)
    counts["locates"] = sum(counts.get(f"locates_{how}", 0) for how in ("found", "awaited", "unknown", "timeout"))
    return {name: counts.get(name, 0) for name in names}


class SimPair:
    """As in `Stack`: nodes a and b, an engine at each. `checksum`: bytes per second of one thread."""

    def __init__(self, costs: Costs, hop: float, read_latency: float, checksum: float, seed: int = 1) -> None:
        hardware = Hardware(nic=MOVER, read_latency=read_latency, wire=hop, hop=hop, hash=checksum)
        model = Model(block=16, token_bytes=PAGE_BYTES // 16, ranks=1)
        self.world = World(hardware, model, costs, Tally(), random.Random(seed), Sizes())
        self._tiers: dict[str, SimTier] = {}
        self.metaserver = SimMetaserver(self.world, self._tiers)
        for node in "ab":
            tier = self._tiers[node] = SimTier(self.world, node, POOL_BYTES, 0, self._tiers)
            tier.metaservers = Replicas(self.world, [self.metaserver])
        self.engines = {node: Connector(tier, node, 1) for node, tier in self._tiers.items()}
        for node, tier in self._tiers.items():
            tier.start()
            self.engines[node].start()
        self._until(self.metaserver.knows_all)
        self._numbers = iter(range(1 << 40))

    def _until(self, check: Callable[[], bool]) -> None:
        if not self.world.agenda.run_while(lambda: not check(), self.world.now + 30.0):
            raise SystemExit("the simulated pair stands still")

    def _pass(self, seconds: float) -> None:
        self.world.agenda.run(self.world.now + seconds)

    def save(self, keys: list[bytes]) -> None:
        over: list[None] = []
        one = self.engines["a"].intent(keys, [0] * len(keys), ["v"], [0] * len(keys), 0, lambda: over.append(None))
        self._until(lambda: one.grant is not None)
        self.engines["a"].computed(one)
        self._until(lambda: bool(over))

    def lookup(self, node: str, keys: list[bytes]) -> float:
        found: list[Any] = []
        began = self.world.now
        self.engines[node].lookup("v", keys, [], 5.0, True, found.append)
        self._until(lambda: bool(found))
        ended = self.world.now
        [hits] = found
        assert isinstance(hits, Hits) and hits.full == len(keys), hits
        self.engines[node].release(hits)
        self._pass(PAUSE_S)
        return ended - began

    def keys(self, count: int) -> list[bytes]:
        return [block_key(1 << 50, next(self._numbers)) for _ in range(count)]

    def busy(self) -> dict[str, float]:
        cores = {"metaserver": self.metaserver.core, **{f"tier {node}": tier.core for node, tier in self._tiers.items()}}
        return {name: core.busy_s for name, core in cores.items()}

    def counts(self) -> dict[str, dict[str, int]]:
        found = {f"tier {node}": picked(tier.state.counts, TIER_COUNTS) for node, tier in self._tiers.items()}
        return {"metaserver": picked(self.metaserver.state.counts, METASERVER_COUNTS), **found}

    def locates(self, keys: list[bytes], count: int) -> None:
        left = [count]

        def answered(_: Any) -> None:
            left[0] -= 1

        for _ in range(count):
            asker = Asker(answered, self.world.hardware.wire)
            self.world.agenda.after(self.world.hardware.wire, self.metaserver.asked, Locate("v", keys, 0, False), asker)
        self._until(lambda: not left[0])

    def saves(self, batches: list[list[bytes]]) -> None:
        engine, left = self.engines["a"], [len(batches)]

        def ended() -> None:
            left[0] -= 1

        for number, keys in enumerate(batches):
            one = engine.intent(keys, [0] * len(keys), [f"v{number}"], [0] * len(keys), 0, ended)
            engine.computed(one)
        self._until(lambda: not left[0] and engine.tier.state.pages.announced.pending == 0 and not self.metaserver.core.backlog)
        self._pass(0.2)

    def restart(self) -> tuple[float, float]:
        server = self.metaserver
        server.kill(self.world.random.uniform(0.5, 1.0))
        self._until(lambda: server.up)
        back = self.now
        self._until(lambda: bool(server.state.nodes.by_name))
        known = self.now
        self._until(server.knows_all)
        return known - back, self.now - back

    def idle(self) -> None:
        self._pass(IDLE_S)

    @property
    def now(self) -> float:
        return self.world.now


def play(pair: Any, rounds: int, flood: Mapping[str, int] = FLOOD, restarts: int = RESTARTS) -> Played:
    """The script, on a simulated or a real pair: what both can do has one name."""
    out = Played()
    began, before = pair.now, pair.busy()
    pair.idle()
    rates = {name: (after - before[name]) / (pair.now - began) for name, after in pair.busy().items()}
    began, before = pair.now, pair.busy()
    for size in _order(rounds):
        keys = pair.keys(size)
        pair.save(keys)
        pair.lookup("a", keys)
        out.remote.setdefault(size, []).append(pair.lookup("b", keys))
        out.local.setdefault(size, []).append(pair.lookup("b", keys))
    seconds = pair.now - began
    out.cpu = {name: after - before[name] - rates[name] * seconds for name, after in pair.busy().items()}
    out.counts = pair.counts()
    known = pair.keys(FLOOD_KEYS)
    pair.saves([known])
    before = pair.busy()
    pair.locates(known, flood["locate"])
    between = pair.busy()
    pair.saves([pair.keys(FLOOD_KEYS) for _ in range(flood["save"])])
    after = pair.busy()
    out.flood = {
        f"metaserver, locate of {FLOOD_KEYS}": (between["metaserver"] - before["metaserver"]) / flood["locate"],
        f"metaserver, two deltas of {FLOOD_KEYS}": (after["metaserver"] - between["metaserver"]) / flood["save"],
        f"tier a, save of {FLOOD_KEYS}": (after["tier a"] - between["tier a"]) / flood["save"],
    }
    out.restarts = [pair.restart() for _ in range(restarts)]
    return out


def _order(rounds: int) -> Iterator[int]:
    """Sizes in turns, so that a slow second of the machine hits all."""
    for _ in range(rounds):
        yield from SIZES
