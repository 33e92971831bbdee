"""A metaserver of the simulation: the real `MetaserverState` behind a model of its shell (services/metaserver/service.py)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pegaflow.common.bus.clone import JITTER_S
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.catalogue import Delta, Hello, Locate, Sync
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import AskChunk, Connect, Disconnect, Fail, Publish, Reply
from pegaflow.services.metaserver.service import TICK_S, WORK_PAUSE_S
from pegaflow.services.metaserver.state import MetaserverState
from pegaflow.services.metaserver.table import SLOTS

from simulation.agenda import Core
from simulation.costs import keys_of
from simulation.world import Asker, World

if TYPE_CHECKING:
    from simulation.tier import SimTier

SLOT_BYTES = 12
"""Of the index: 8 of a name, 4 of a value (services/metaserver/table.py)."""


def table_bytes(keys: int, fill: float = 0.8) -> int:
    """Of a table that has grown to so many keys: the next power of two of buckets."""
    buckets = 1 << 10
    while keys > fill * buckets * SLOTS:
        buckets *= 2
    return buckets * SLOTS * SLOT_BYTES


class SimMetaserver:
    """`tiers` by node name is shared with the cluster, which fills it."""

    def __init__(self, world: World, tiers: dict[str, SimTier]) -> None:
        self._world, self._tiers = world, tiers
        self.core = Core(world.agenda, world.costs.woken)
        self.messages = self.bytes_in = self.bytes_out = 0.0
        self.spent: dict[str, float] = defaultdict(float)
        """Seconds of this core by kind of event, sockets and codec included, without waking up."""
        self.up = True
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        self._life += 1
        self.state = MetaserverState(self._world.epoch(), lambda: self._world.random.uniform(0.0, JITTER_S))
        self._wake_at: float | None = None
        self._working = False
        self._world.agenda.after(self._world.random.uniform(0.0, TICK_S), self._tick, self._life)

    # --- life --------------------------------------------------------------------------------------------------------

    def kill(self, back_after: float) -> None:
        """Loses everything; another life begins so many seconds later."""
        self.up = False
        self.core.clear()
        for tier in self._tiers.values():
            tier.unsubscribe(self)
        self._world.agenda.after(back_after, self._back)

    def _back(self) -> None:
        self.up = True
        self._begin()

    def knows_all(self) -> bool:
        nodes = self.state.nodes.by_name
        return self.up and len(nodes) == len(self._tiers) and all(node.whole for node in nodes.values())

    @property
    def keys(self) -> int:
        return len(self.state.index)

    # --- in ----------------------------------------------------------------------------------------------------------

    def asked(self, message: Any, asker: Asker) -> None:
        """A request has arrived."""
        kind = {Locate: "metaserver.locate", Hello: "metaserver.hello"}.get(type(message), "metaserver.other")
        self._take(kind, events.Asked(asker, message), message)

    def heard(self, node: str, epoch: int, seq: int, message: Any) -> None:
        """An event of a tier has arrived."""
        if self.up:
            kind = "metaserver.delta" if isinstance(message, Delta) else "metaserver.beat"
            self._take(kind, events.Heard(node, epoch, seq, message), message)

    def _take(self, kind: str, event: events.Event, message: Any) -> None:
        if not self.up:
            return
        keys = keys_of(message)
        self.messages += 1
        self.bytes_in += self._world.sizes.of(message)
        self.core.give(self._handle, kind, event, keys, self._world.costs.received(keys), self._life)

    def _tick(self, life: int) -> None:
        if life == self._life and self.up:
            self.core.give(self._handle, "metaserver.tick", events.Tick(), 0, 0.0, life)
            self._world.agenda.after(TICK_S, self._tick, life)

    def _woken(self, life: int, at: float) -> None:
        if life == self._life and self.up and self._wake_at == at:
            self._wake_at = None
            self.core.give(self._handle, "metaserver.tick", events.Tick(), 0, 0.0, life)

    def _work(self, life: int) -> None:
        self._working = False
        if life == self._life and self.up:
            self.core.give(self._handle, "metaserver.work", events.Work(), 0, 0.0, life)

    # --- one event ---------------------------------------------------------------------------------------------------

    def _handle(self, kind: str, event: events.Event, keys: int, spent: float, life: int) -> float:
        if life != self._life or not self.up:
            return 0.0
        world = self._world
        costs, agenda, now = world.costs, world.agenda, world.now
        if kind == "metaserver.delta" and len(self.state.waiters):
            kind, keys = self._awaited(event, kind, keys)
        spent += costs.of_event(kind, keys)
        for command in world.handled(self.state, kind, event, keys):
            match command:
                case Reply(asker, message):
                    spent += costs.sent(keys_of(message))
                    self.bytes_out += world.sizes.of(message)
                    world.reply(asker, message, now + spent)
                case Fail(asker, code, text):
                    spent += costs.sent(0)
                    world.reply(asker, RemoteError(code, text), now + spent)
                case Publish():
                    spent += costs.sent(0)
                case Connect(node):
                    agenda.at(now + spent + world.hardware.wire, self._tiers[node].subscribe, self, life)
                case Disconnect(node):
                    self._tiers[node].unsubscribe(self)
                case AskChunk(node, epoch, sync):
                    spent += costs.sent(0)
                    asker = Asker(self._chunk_taker(node, sync), world.hardware.wire)
                    agenda.at(now + spent + world.hardware.wire, self._tiers[node].asked, sync, asker, epoch)
                case _:
                    pass  # a line for people
        self._arm(life)
        self.spent[kind] += spent
        return spent

    def _awaited(self, event: Any, kind: str, keys: int) -> tuple[str, int]:
        """A delta for which somebody waits costs what their questions cost, which are asked again."""
        concerned = self.state.waiters.concerned(event.message.keys)
        if not concerned:
            return kind, keys
        return "metaserver.delta_awaited", keys + sum(len(waiter.message.keys) for waiter in concerned)

    def _arm(self, life: int) -> None:
        due = self.state.next_due()
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            self._world.agenda.at(due, self._woken, life, due)
        if not self._working and self.state.busy:
            self._working = True
            self._world.agenda.after(WORK_PAUSE_S, self._work, life)

    def _chunk_taker(self, node: str, sync: Sync) -> Any:
        life = self._life

        def answered(answer: Any) -> None:
            if life == self._life:
                self._take("metaserver.chunk", events.ChunkAnswer(node, sync.sync_id, answer), answer)

        return answered

    def is_life(self, life: int) -> bool:
        return life == self._life and self.up
