"""A whole deployment in simulated time, and what is known of it afterwards."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.saves import Grant, Intent, Written
from pegaflow.services.router.policy import Policy
from pegaflow.services.tier import commands, events

from simulation.connector import Connector
from simulation.costs import Costs, Sizes
from simulation.engines import DecodeEngine, PrefillEngine
from simulation.figures import Hardware, Load, Model
from simulation.metaserver import SimMetaserver, table_bytes
from simulation.replicas import Replicas
from simulation.request import Request
from simulation.routing import SimRouter
from simulation.tally import Tally
from simulation.tier import SimTier
from simulation.workload import Session, Users, block_key
from simulation.world import World

PRELOAD_STEP = 512
DRAIN_S = 120.0
FULL = 0.95
"""Of a core: above, it does less than is asked of it, and what it does says nothing of how many nodes would fill it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`nodes`, three of four for prefill. Times in seconds, counted from the start; `pool_pages` per node.

    `lose_at`: when the first metaserver dies, counted from the end of `warm`, to come back `back_after` later. `rotate`: each
    tier lists the metaservers in an order of its own. `preload`: pages that each tier holds before time begins. `drain`: until
    the last request has ended, not just until no new one comes. `grain`: how many pages one simulated page stands for; what
    each key costs is counted so many times.
    """

    nodes: int = 8
    metaservers: int = 1
    rotate: bool = False
    seconds: float = 30.0
    warm: float = 15.0
    pool_pages: int = 6000
    disk_pages: int = 0
    preload: int = 0
    lose_at: float = 0.0
    back_after: float = 1.0
    policy: Policy = Policy.PREFIX
    seed: int = 1
    checks: bool = False
    drain: bool = False
    grain: int = 1
    hardware: Hardware = field(default_factory=Hardware)
    model: Model = field(default_factory=Model)
    load: Load = field(default_factory=Load)
    costs: Costs = field(default_factory=Costs)

    @property
    def prefill_nodes(self) -> int:
        return max(1, self.nodes * 3 // 4)

    @property
    def grained(self) -> Model:
        return replace(self.model, block=self.model.block * self.grain)


class Cluster:
    """`run` takes it from its first to its last request; then ask."""

    def __init__(self, setup: Setup, kinds: dict[str, list[tuple[int, float]]] | None = None) -> None:
        self.setup = setup
        self.tally = Tally(since=setup.warm, kinds=kinds)
        chance = random.Random(setup.seed)
        model = setup.grained
        costs, sizes = setup.costs.grained(setup.grain), Sizes(setup.grain)
        self.world = World(setup.hardware, model, costs, self.tally, chance, sizes, setup.checks)
        self.tiers: dict[str, SimTier] = {}
        self.metaservers = [SimMetaserver(self.world, self.tiers) for _ in range(setup.metaservers)]
        self.router = SimRouter(self.world, setup.policy, self.metaservers, self._finished)
        prefill, decode = setup.prefill_nodes, max(1, setup.nodes - setup.prefill_nodes)
        page = model.page_bytes
        pool, disk = setup.pool_pages // setup.grain * _slot(page), setup.disk_pages // setup.grain * page
        for number, node in enumerate([f"p{i}" for i in range(prefill)] + [f"d{i}" for i in range(decode)]):
            tier = SimTier(self.world, node, pool, disk, self.tiers)
            turn = number % len(self.metaservers) if setup.rotate else 0
            tier.metaservers = Replicas(self.world, self.metaservers[turn:] + self.metaservers[:turn])
            self.tiers[node] = tier
        self.prefill = [PrefillEngine(self.tiers[f"p{i}"], self.router.answered) for i in range(prefill)]
        self.decode = [DecodeEngine(self.tiers[f"d{i}"], self.router.ended) for i in range(decode)]
        self.router.engines(self.prefill, self.decode)
        systems = max(4, int(setup.load.systems_per_node * setup.nodes))
        self.users = Users(setup.load, model.block, systems, setup.seed + 1, self._turn)
        self._numbers = itertools.count(1)
        self._ready: deque[Session] = deque()
        self._until = setup.seconds
        self.began = self.ended = 0
        self.recovery_s = float("nan")
        self.wall_s = 0.0
        self._marks: dict[str, list[float]] = {}

    # --- users -------------------------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """Requests per second that are wanted."""
        return self.setup.load.requests(self.setup.model) * len(self.prefill)

    def _arrive(self) -> None:
        """The next turn of somebody who has thought long enough, or a first one: so the rate is that of all from the start."""
        now = self.world.now
        if now >= self._until:
            return
        if self._ready and self.users.goes_on():
            self.users.next_turn(self._ready.popleft())
        else:
            self.users.next_turn(self.users.begin())
        self.world.agenda.after(self.users.gap(self.rate), self._arrive)

    def _turn(self, session: Session, prompt: int, output: int) -> None:
        request = Request(next(self._numbers), session, prompt, output, self.world.now)
        self.began += 1
        self.tally.count("requests", request.arrived)
        self.router.arrived(request)

    def _finished(self, request: Request) -> None:
        self.ended += 1
        if request.session.turns_left > 0:
            self.world.agenda.after(self.users.pause(request.session), self._ready.append, request.session)

    # --- a run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        began, setup, agenda = time.perf_counter(), self.setup, self.world.agenda
        for number, tier in enumerate(self.tiers.values()):
            self._preload(number, tier)
        starts: list[Callable[[], None]] = [part.start for part in self.tiers.values()]
        for start in starts + [engine.start for engine in (*self.prefill, *self.decode)]:
            start()
        agenda.run(1.0)  # hellos, first snapshots
        agenda.run_while(lambda: not all(one.knows_all() for one in self.metaservers), 600.0)
        self.ready_s = agenda.now
        self._until = agenda.now + setup.seconds
        self.tally.since = agenda.now + setup.warm
        self._arrive()
        agenda.run(self.tally.since)
        self._mark("warm")
        if setup.lose_at:
            self._lose()
        agenda.run(self._until)
        self._mark("end")
        if setup.drain:
            agenda.run_while(lambda: self.router.open > 0 or not self.idle, self._until + DRAIN_S)
        self.wall_s = time.perf_counter() - began

    def _lose(self) -> None:
        lost = self.metaservers[0]
        agenda = self.world.agenda
        agenda.run(self.tally.since + self.setup.lose_at)
        self.lost_at = agenda.now
        lost.kill(self.setup.back_after)
        agenda.run_while(lambda: not lost.knows_all(), agenda.now + 600.0)
        self.recovery_s = agenda.now - self.lost_at

    def _mark(self, name: str) -> None:
        self._marks[name] = [
            self.world.now,
            *[value for one in self.metaservers for value in (one.core.work_s, one.messages, one.bytes_in, one.bytes_out)],
            *[tier.core.work_s for tier in self.tiers.values()],
            *[max(tier.egress.busy_s, tier.ingress.busy_s) for tier in self.tiers.values()],
            *[engine.busy_s for engine in self.prefill],
        ]

    def _preload(self, number: int, tier: SimTier) -> None:
        """As if an engine had saved so many pages in an earlier hour."""
        pages = self.setup.preload // self.setup.grain
        if not pages:
            return
        connector = Connector(tier, "loader", 1)
        block = self.world.model.block
        for intent, first in enumerate(range(0, pages, PRELOAD_STEP), start=1):
            count = min(PRELOAD_STEP, pages - first)
            keys = [block_key((1 << 40) + number, first + i) for i in range(count)]
            message = Intent(tier.epoch, intent, keys, u32s([block] * count), b"", [f"l{intent}"], u32s([0] * count))
            grant = next(
                c.message for c in self._say(connector, 0, intent, message) if isinstance(getattr(c, "message", None), Grant)
            )
            tier.contents.update(zip(grant.slots, [key[16:32] for key in keys], strict=True))
            word = Written(tier.epoch, connector.session, grant.grant, grant.slots, u64s(grant.generations), grant.marks)
            for command in self._say(connector, 1, intent, word):
                if isinstance(command, commands.Hash):
                    tier.free_of_cost(events.Hashed(command.job, [tier.contents[slot] for slot in command.slots]))
        for member in (1, 2):
            tier.free_of_cost(events.Proven(connector.session, member))

    @staticmethod
    def _say(connector: Connector, member: int, seq: int, message: Any) -> list[Any]:
        return connector.tier.free_of_cost(events.Published(connector.session, member + 1, seq, connector.token, message))

    @property
    def idle(self) -> bool:
        """No engine has a request, holds a lease or a grant, or waits for the end of a save."""
        return all(engine.idle for engine in (*self.prefill, *self.decode))

    # --- afterwards --------------------------------------------------------------------------------------------------

    def rows(self) -> dict[str, Any]:
        """What one run showed, for a table. Rates are those between `warm` and the end."""
        setup, tally = self.setup, self.tally
        before, after = self._marks["warm"], self._marks["end"]
        spent = [(b - a) / (after[0] - before[0]) for a, b in zip(before, after, strict=True)]
        servers, nodes = setup.metaservers, len(self.tiers)
        meta = [spent[1 + 4 * i : 5 + 4 * i] for i in range(servers)]
        tiers = spent[1 + 4 * servers : 1 + 4 * servers + nodes]
        nics = spent[1 + 4 * servers + nodes : 1 + 4 * servers + 2 * nodes]
        engines = spent[1 + 4 * servers + 2 * nodes :]
        levels = ("tokens_local", "tokens_remote", "tokens_disk", "tokens_computed")
        keys = max(one.keys for one in self.metaservers) * setup.grain
        per_server = max(range(servers), key=lambda i: meta[i][0])
        return {
            "nodes": setup.nodes,
            "grain": setup.grain,
            "metaservers": servers,
            "requests/s": tally.counts["requests"] / (after[0] - before[0]),
            "hit local": tally.share(levels[0], *levels),
            "hit remote": tally.share(levels[1], *levels),
            "hit disk": tally.share(levels[2], *levels),
            "computed": tally.share(levels[3], *levels),
            "recomputed at D": tally.share("decode_recomputed", "decode_tokens"),
            "lookup local p50 ms": tally.ms("lookup_local", 0.5),
            "lookup local p99 ms": tally.ms("lookup_local", 0.99),
            "locate p50 ms": tally.ms("locate_at_once", 0.5),
            "locate p99 ms": tally.ms("locate_at_once", 0.99),
            "handoff p50 ms": tally.ms("handoff", 0.5),
            "handoff p99 ms": tally.ms("handoff", 0.99),
            "ttft p50 ms": tally.ms("ttft", 0.5),
            "metaserver core": meta[per_server][0],
            "full at nodes": setup.nodes / meta[per_server][0] if meta[per_server][0] < FULL else float("nan"),
            "messages/s": meta[per_server][1],
            "MB/s in": meta[per_server][2] / 1e6,
            "MB/s out": meta[per_server][3] / 1e6,
            "kkeys": keys / 1e3,
            "MB index": table_bytes(keys) / 1e6,
            "tier core max": max(tiers),
            "NIC max": max(nics),
            "prefill busy": sum(engines) / len(engines),
            "recovery s": self.recovery_s,
            "events": self.world.agenda.done,
            "wall s": self.wall_s,
        }

    def shares(self) -> list[dict[str, Any]]:
        """What the first metaserver's core spent its time on, over the whole run."""
        spent = self.metaservers[0].spent
        whole = sum(spent.values())
        rows = sorted(spent.items(), key=lambda row: -row[1])
        return [{"metaserver's core": kind.partition(".")[2], "share": seconds / whole} for kind, seconds in rows]


def _slot(page: int) -> int:
    """Bytes of a slot: whole granules of 16 KiB, and a little for slabs that are not full."""
    return -(-page // 16384) * 16384 * 20 // 19
