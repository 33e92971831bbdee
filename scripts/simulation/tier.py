"""A tier of the simulation: the real `TierState` behind a model of its shell (services/tier/service.py, carrier.py).

A page's bytes are one short text, its key: whoever writes, hashes, reads or moves a slot handles that, so checksums are compared.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pegaflow.common.bus.events import SHOW_HEAD, session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages import attach, catalogue, loads, saves, transfer
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.carrier import PIN_BUDGET_S
from pegaflow.services.tier.disk.level import DiskOptions
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.pages import TOPIC
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.service import HELLO_S, TICK_S
from pegaflow.services.tier.state import TierState

from simulation.agenda import Core
from simulation.costs import keys_of
from simulation.pipes import Pipe, carry_between
from simulation.replicas import Replicas
from simulation.world import Asker, World

if TYPE_CHECKING:
    from simulation.metaserver import SimMetaserver

_REQUESTS = {
    loads.Lookup: "lookup",
    loads.Loading: "loading",
    loads.Release: "release",
    transfer.Pin: "pin",
    transfer.Unpin: "unpin",
    catalogue.Sync: "sync",
}
_WORDS = {saves.Intent: "intent", saves.Written: "written", saves.Abandoned: "written", attach.Alive: "alive"}


class Listener(Protocol):
    """Of one session's topic."""

    def told(self, message: Any, seq: int) -> None: ...


class SimTier:
    """`pool` and `disk` in bytes. `tiers` by node name is shared with the cluster, which fills it."""

    def __init__(self, world: World, node: str, pool: int, disk: int, tiers: dict[str, SimTier]) -> None:
        self.world, self.node, self._tiers = world, node, tiers
        self.epoch = world.epoch()
        self.core = Core(world.agenda, world.costs.woken)
        hardware = world.hardware
        self.egress, self.ingress, self.hasher = Pipe(hardware.nic), Pipe(hardware.nic), Pipe(hardware.hash)
        self.disk_in, self.disk_out = Pipe(hardware.disk_write), Pipe(hardware.disk_read)
        self.contents: dict[int, bytes] = {}
        self.listeners: dict[bytes, Listener] = {}
        self._heads: Counter[bytes] = Counter()
        self._subscribers: dict[SimMetaserver, int] = {}
        self._tick_at = 0.0
        self.metaservers: Replicas
        place = Place(node, self.epoch, "pool", pool, "table", "i", "e", "c")
        # Only what leaves memory ahead of need goes to disk. Coarse pages leave a fifth of each slab empty.
        space = SpaceOptions(evict_high=0.75, evict_low=0.7) if disk else SpaceOptions()
        self.state = TierState(
            place,
            lambda count: world.random.randbytes(count),
            session_topic,
            metaserver=True,
            space=space,
            disk=DiskOptions(capacity=disk),
        )
        self.state.agent = Agent(f"{node}/{self.epoch:016x}", bytes(512), 0)
        self.free_of_cost(events.Backed(pool // GRANULE))

    def start(self) -> None:
        """Ticks and hellos begin, each at a time of its own."""
        agenda, random = self.world.agenda, self.world.random
        self._arm(random.uniform(0.0, 0.1))
        agenda.after(random.uniform(0.0, HELLO_S), self._hello)

    # --- in ----------------------------------------------------------------------------------------------------------

    def asked(self, message: Any, asker: Asker, epoch: int = 0, keys: int = -1) -> None:
        """A request has arrived. `keys`: of what it is about, where the message does not say."""
        if epoch not in (0, self.epoch):
            self.world.reply(asker, RemoteError(ErrorCode.WRONG_EPOCH, "another life"), self.world.now)
            return
        count = keys_of(message) if keys < 0 else keys
        received = self.world.costs.received(keys_of(message))
        self.core.give(self._handle, f"tier.{_REQUESTS[type(message)]}", events.Asked(asker, message), count, received)

    def published(self, event: events.Published) -> None:
        """A publication of an engine has arrived."""
        keys = keys_of(event.message)
        self.core.give(self._handle, f"tier.{_WORDS[type(event.message)]}", event, keys, self.world.costs.received(keys))

    def signs_of_life(self, signs: list[events.Published]) -> None:
        """Of all processes of an engine, which beat at the same time: one job, for the simulation's sake."""
        self.core.give(self._handle_all, signs)

    def _handle_all(self, signs: list[events.Published]) -> float:
        received = self.world.costs.received(0)
        return sum(self._handle("tier.alive", sign, 0, received) for sign in signs)

    def _result(self, kind: str, event: events.Event, keys: int, received: float = 0.0) -> None:
        self.core.give(self._handle, kind, event, keys, received)

    def free_of_cost(self, event: events.Event) -> list[Any]:
        """Before time begins. Answers, and events nobody listens to yet, are the caller's."""
        out = []
        for command in self.state.handle(event, self.world.now):
            if isinstance(command, commands.Publish):
                self._number(command.topic, command.message)
            out.append(command)
        return out

    def _hello(self) -> None:
        self.world.agenda.after(HELLO_S, self._hello)
        self.core.give(self._say_hello)

    def _say_hello(self) -> float:
        endpoint = f"tcp://{self.node}:7300"
        load = self.state.leases.load()
        hello = catalogue.Hello(self.node, self.epoch, endpoint, endpoint, endpoint, "0.1.0", False, *load)
        spent = self.world.costs.sent(0)
        self.metaservers.tell(hello, self.world.now + spent)
        return spent

    def _arm(self, at: float) -> None:
        self._tick_at = at
        self.world.agenda.at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        if at == self._tick_at:
            self.core.give(self._handle, "tier.tick", events.Tick(), 0, 0.0)

    # --- one event ---------------------------------------------------------------------------------------------------

    def _handle(self, kind: str, event: events.Event, keys: int, spent: float) -> float:
        world, state = self.world, self.state
        now, costs = world.now, world.costs
        spent += costs.of_event(kind, keys)
        store = costs.stored
        for command in world.handled(state, kind, event, keys):
            if isinstance(command, commands.Table | commands.Cut | commands.ReadersUntil):
                spent += store
            else:
                spent += self._carry_out(command, spent)
        if kind == "tier.tick" or (self._tick_at - now > TICK_S and state.rest(now) <= 0):
            self._arm(now + max(TICK_S, state.rest(now)))
        return spent

    def _carry_out(self, command: commands.Command, spent: float) -> float:
        """Seconds that the shell needs for it, on top of those spent."""
        world = self.world
        now, costs, agenda, wire = world.now, world.costs, world.agenda, world.hardware.wire
        match command:
            case commands.Reply(asker, message):
                cost = costs.sent(keys_of(message))
                world.reply(asker, message, now + spent + cost)
                return cost
            case commands.Fail(asker, code, text):
                cost = costs.sent(0)
                world.reply(asker, RemoteError(code, text), now + spent + cost)
                return cost
            case commands.Publish(topic, message):
                cost = costs.sent(keys_of(message))
                self._publish(topic, message, now + spent + cost)
                return cost
            case commands.Locate(ask, keys, wait_ms, expected, tails):
                cost, began = costs.sent(len(keys)), now
                question = catalogue.Locate(self.node, keys, wait_ms, expected, tails)

                def located(answer: Any) -> None:
                    world.tally.span("locate", began, world.now)
                    if not wait_ms or not expected:
                        world.tally.span("locate_at_once", began, world.now)
                    count = keys_of(answer)
                    self._result("tier.located", events.LocateAnswer(ask, answer), count, costs.received(count))

                self.metaservers.ask(question, now + spent + cost, located)
                return cost
            case commands.PinAt():
                return self._pin(command, spent)
            case commands.UnpinAt(_, epoch, lease):
                owner = self._tiers[command.endpoint.split("/")[2].split(":")[0]]
                agenda.at(now + spent + wire, owner.asked, transfer.Unpin(lease), Asker(None, wire), epoch)
                return costs.sent(0)
            case commands.Hash(job, slots, lengths):
                sums = [self.contents[slot] for slot in slots]
                agenda.at(self.hasher.carry(sum(lengths), now + spent), self._hashed, job, sums)
            case commands.Read():
                self._read(command, now + spent)
            case commands.DiskWrite() | commands.DiskRead():
                self._disk(command, now + spent)
            case commands.GiveUp():
                world.tally.count("reads_given_up", now)
            case commands.Log("bad_checksum"):
                raise AssertionError(f"{self.node}: a page with other bytes")
            case _:
                pass  # probes, topics, lines for people
        return 0.0

    def _hashed(self, job: int, sums: list[bytes]) -> None:
        self._result("tier.hashed", events.Hashed(job, sums), len(sums))

    # --- events out --------------------------------------------------------------------------------------------------

    def _number(self, topic: bytes, message: Any) -> int:
        self._heads[topic] += message.KIND not in SHOW_HEAD
        return self._heads[topic]

    def _publish(self, topic: bytes, message: Any, leaves: float) -> None:
        seq = self._number(topic, message)
        if topic == TOPIC:
            self.world.tally.count("deltas", leaves, isinstance(message, catalogue.Delta))
            for server, life in self._subscribers.items():
                self._send(server, life, seq, message, leaves)
        elif isinstance(message, saves.Grant):
            listener = self.listeners[topic]
            self.world.agenda.at(leaves + self.world.hardware.hop, listener.told, message, seq)

    def _send(self, server: SimMetaserver, life: int, seq: int, message: Any, leaves: float) -> None:
        def arrive() -> None:
            if server.is_life(life):
                server.heard(self.node, self.epoch, seq, message)

        self.world.agenda.at(leaves + self.world.hardware.wire, arrive)

    def subscribe(self, server: SimMetaserver, life: int) -> None:
        """A life of a metaserver listens to the catalogue from now on; it is welcomed with the head."""
        if server.is_life(life):
            self._subscribers[server] = life
            self._send(server, life, self._heads[TOPIC], attach.Welcome(), self.world.now)

    def unsubscribe(self, server: SimMetaserver) -> None:
        self._subscribers.pop(server, None)

    # --- other tiers, disk -------------------------------------------------------------------------------------------

    def _pin(self, command: commands.PinAt, spent: float) -> float:
        world = self.world
        cost, sent_at, wire = world.costs.sent(len(command.keys)), world.now, world.hardware.wire
        over = False

        def answered(answer: Any) -> None:
            nonlocal over
            if not over:
                over = True
                count = keys_of(answer)
                event = events.PinAnswer(command.fetch, answer, sent_at)
                self._result("tier.pinned", event, count, world.costs.received(count))

        owner = self._tiers[command.endpoint.split("/")[2].split(":")[0]]
        pin = transfer.Pin(self.node, command.keys, command.shards, command.ttl_ms)
        world.agenda.at(world.now + spent + cost + wire, owner.asked, pin, Asker(answered, wire), command.epoch)
        late: PegaflowError = RemoteError(ErrorCode.DEADLINE, "late")
        world.agenda.after(PIN_BUDGET_S, answered, late)
        return cost

    def _read(self, command: commands.Read, leaves: float) -> None:
        hardware, owner = self.world.hardware, self._tiers[command.peer.partition("/")[0]]
        begins = leaves + 2 * hardware.hop + hardware.read_latency  # to the mover and back
        ended = carry_between(owner.egress, self.ingress, sum(command.lengths), begins)
        self.world.agenda.at(ended, partial(self._landed, owner), command)

    def _landed(self, owner: SimTier, command: commands.Read) -> None:
        for here, there in zip(command.local, command.remote, strict=True):
            self.contents[here // GRANULE] = owner.contents[there // GRANULE]
        self._result("tier.read_ended", events.ReadEnded(command.fetch, "done"), len(command.local))

    def _disk(self, command: commands.DiskWrite | commands.DiskRead, leaves: float) -> None:
        size = sum(sum(record.lengths) for record in command.records)
        pipe = self.disk_in if isinstance(command, commands.DiskWrite) else self.disk_out
        ended = pipe.carry(size, leaves) + self.world.hardware.disk_latency
        self.world.agenda.at(ended, self._disk_ended, command)

    def _disk_ended(self, command: commands.DiskWrite | commands.DiskRead) -> None:
        count = len(command.records)
        if isinstance(command, commands.DiskWrite):
            self._result("tier.disk_written", events.DiskWritten(command.job, ""), count)
            return
        found = [list(record.checksums) for record in command.records]
        for record, slots in zip(command.records, command.slots, strict=True):
            self.contents.update(zip(slots, record.checksums, strict=True))
        self._result("tier.disk_read", events.DiskReadEnded(command.job, found), count)
