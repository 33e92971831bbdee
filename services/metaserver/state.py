"""The metaserver, pure: `handle(event, now) -> list[command]`.

    nodes    who lives where           clones   each tier's catalogue (common/bus/clone.py)
    index    who holds which key       locate   the answer to a question      waiters  locates that wait for a key

    hello ─▶ Connect ─▶ first event ─▶ AskChunk … ─▶ whole ─▶ NodeUp ─▶ silence, bye, new life ─▶ NodeDown

No sockets, no clock, no threads: time, jitter and answers come in, commands go out and are carried out in order. Everything here
can be rebuilt from the tiers; a wrong entry costs a miss. `validate()` checks how the parts fit; tests call it after each event.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple, assert_never

from pegaflow.common.bus.clone import Applied, Ask, Effect, Swapped, Voided, Wanted
from pegaflow.common.bus.generation import Generation
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    Beat,
    Bye,
    CatalogueBeat,
    Delta,
    Hello,
    HelloAck,
    Locate,
    NodeDown,
    NodeList,
    Nodes,
    NodeUp,
    SyncChunk,
)
from pegaflow.common.wire.messages.inspection import Resync
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import AskChunk, Command, Connect, Disconnect, Fail, Log, Publish, Reply
from pegaflow.services.metaserver.index import Index
from pegaflow.services.metaserver.inspection import dump
from pegaflow.services.metaserver.inspector import Inspector
from pegaflow.services.metaserver.locate import Found, Holders, Question
from pegaflow.services.metaserver.nodes import Node
from pegaflow.services.metaserver.nodes import Nodes as KnownNodes
from pegaflow.services.metaserver.waiters import Waiter, Waiters

BEAT_S = 0.5
MAX_WAIT_S = 60.0
PAUSE_S = 1.0
MAX_KEYS = 1 << 20
SETTLE_KEYS = 1 << 14
"""Of locates that wait, looked at again in one event: a few milliseconds, however many wait."""
MAX_LEFT = 64
"""Lives that ended, remembered for whoever asks where pages are gone."""


class Left(NamedTuple):
    """A node's life that is over, at `requests`; `sealed`: how many pages it was known to have, None where that is forgotten."""

    node: str
    epoch: int
    reason: str
    at: float
    sealed: int | None
    requests: str


class MetaserverState:
    """One life of one metaserver. `jitter` gives 0 to JITTER_S seconds: how long a repeated snapshot waits."""

    def __init__(self, epoch: int, jitter: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self.index = Index()
        self.nodes = KnownNodes(epoch, itertools.count(1), self._generation)
        self.waiters = Waiters()
        self._inspector = Inspector(self.nodes)
        self.left: deque[Left] = deque(maxlen=MAX_LEFT)
        self._jitter = jitter
        self._turn = 0
        self._beat_at = 0.0
        self._last_at: float | None = None
        self._out: list[Command] = []

    def _generation(self, node: str) -> Generation:
        return self.index.generation(node)

    def handle(self, event: events.Event, now: float) -> list[Command]:
        """Takes one event in; returns what to do, in order. The caller owns the list."""
        self._forgive_own_pause(now)
        match event:
            case events.Asked():
                try:
                    self._asked(event.asker, event.message, now)
                except RemoteError as error:
                    self._out.append(Fail(event.asker, error.code, error.text))
            case events.Heard():
                self._heard(event, now)
            case events.ConnectFailed(name):
                if (node := self.nodes.by_name.get(name)) is not None:
                    node.unheard = True
            case events.ChunkAnswer():
                self._chunk(event, now)
            case events.Tick():
                self._tick(now)
            case events.Work():
                self._settle_some(now)
                self.index.work()
            case _:
                self._stored(event, now)
        while (node := self.nodes.next_to_sync()) is not None:
            self._carry(node, node.clone.tick(now, self._jitter()), now)
        out, self._out = self._out, []
        return out

    def _stored(self, event: events.StoreEvent, now: float) -> None:
        """What a store has to say; the memory of this process says nothing."""
        raise TypeError(f"{type(event).__name__} without a store")

    def _forgive_own_pause(self, now: float) -> None:
        """Ticks come every 100 ms. If none came for long, it was this process that stood still, not everybody else."""
        paused = now - self._last_at if self._last_at is not None else 0.0
        self._last_at = now
        if paused > PAUSE_S:
            self.counts["paused"] += 1
            for node in self.nodes.by_name.values():
                node.heard_at += paused

    def next_due(self) -> float | None:
        """When a waiter's wait ends: the one thing for which the tick is too coarse."""
        return self.waiters.next_deadline()

    @property
    def busy(self) -> bool:
        """There is work that can wait: give it `Work` again and again, with pauses for others between."""
        return self.index.busy or self.waiters.unsettled

    # --- requests ----------------------------------------------------------------------------------------------------

    def _asked(self, asker: Any, message: Any, now: float) -> None:
        match message:
            case Hello():
                self._hello(asker, message, now)
            case Bye():
                node = self.nodes.by_name.get(message.node)
                if node is not None and node.epoch == message.epoch:
                    self._lose(node, "bye", now)
                self._out.append(Reply(asker, Done()))
            case Locate():
                self._locate(asker, message, now)
            case Nodes():
                self._out.append(Reply(asker, self._node_list(now)))
            case Resync():
                node = self._inspector.node(message.node)
                self._carry(node, node.clone.resync(now), now)
                self._out.append(Reply(asker, Done()))
            case _ if (answer := self._inspector.answer(message)) is not None:
                self._out.append(Reply(asker, answer))
            case _:
                self._out.append(Fail(asker, ErrorCode.UNSUPPORTED, f"a metaserver does not answer {message.KIND}"))

    def _hello(self, asker: Any, hello: Hello, now: float) -> None:
        try:
            node, connect, effects = self.nodes.hello(hello, now)
        except RemoteError as error:
            self.counts[f"refused_{error.code}"] += 1
            raise
        self._carry(node, effects, now)
        self._greeted(node, connect)
        self._out.append(Reply(asker, HelloAck(node.whole)))

    def _greeted(self, node: Node, connect: bool) -> None:
        """A hello was accepted. `connect`: of a node, life or place that is new."""
        if connect:
            self._out.append(Connect(node.name, node.requests, node.events))
            self._out.append(Log("node_met", {"peer": node.name, "peer_epoch": f"{node.epoch:016x}", "requests": node.requests}))

    def _node_list(self, now: float) -> NodeList:
        nodes = list(self.nodes.by_name.values())
        return NodeList(
            [node.name for node in nodes],
            u64s(node.epoch for node in nodes),
            [str(node.state(now)) for node in nodes],
            [node.requests for node in nodes],
            [node.events for node in nodes],
            [node.control for node in nodes],
            u64s(node.clone.sealed for node in nodes),
            u64s(node.clone.pending for node in nodes),
        )

    # --- locate ------------------------------------------------------------------------------------------------------

    def _locate(self, asker: Any, message: Locate, now: float) -> None:
        self._check(message)
        self._turn += 1
        self._decide(asker, message, self._find(message, now), now)

    @staticmethod
    def _check(message: Locate) -> None:
        if len(message.keys) > MAX_KEYS:
            raise RemoteError(ErrorCode.TOO_LARGE, f"{len(message.keys)} keys, at most {MAX_KEYS}")

    def _decide(self, asker: Any, message: Locate, found: Found, now: float) -> None:
        """Answers, or lets it wait."""
        self.counts["located_keys"] += len(found.located.states)
        if not message.wait_ms or not self._worth_waiting(message, found):
            self.counts["locates_found" if found.sealed else "locates_unknown"] += 1
            self._out.append(Reply(asker, found.located))
            return
        if self.waiters.full:
            raise RemoteError(ErrorCode.BUSY, f"{len(self.waiters)} locates are waiting already")
        wanted = message.keys[: len(found.located.states)]
        self.waiters.add(asker, message, wanted, now + min(message.wait_ms / 1e3, MAX_WAIT_S))

    def _find(self, message: Locate, now: float) -> Found:
        question = Question(message, self._holders)
        for keys in question.stages():
            question.take(self.index.sets_of(keys))
        return question.found(self._turn, now)

    def _holders(self, number: Hashable) -> Holders:
        assert isinstance(number, int)
        generations, nodes = self.index.generations, self.nodes.by_name
        rows = [(generations.get(generation), entry) for generation, entry in self.index.rows(number)]
        return [(nodes[made.node], entry) for made, entry in rows if made is not None and made.is_live]

    @staticmethod
    def _worth_waiting(message: Locate, found: Found) -> bool:
        return not found.sealed and len(message.keys) > 0 and (found.pending or message.expected)

    def _settle(self, waiters: list[Waiter], now: float) -> None:
        """Answers those for whom the wait has paid or nothing is left to wait for: if they are many, the rest is work."""
        self.waiters.unsettle(waiters)
        self._settle_some(now)

    def _settle_some(self, now: float) -> None:
        budget = SETTLE_KEYS
        while budget > 0 and (waiter := self.waiters.next_unsettled()) is not None:
            budget -= len(waiter.message.keys)
            self._settle_one(waiter, now)

    def _settle_one(self, waiter: Waiter, now: float) -> None:
        self._decide_waiter(waiter, self._find(waiter.message, now), False)

    def _settle_over(self, waiter: Waiter, now: float) -> None:
        """Its time is over."""
        self._decide_waiter(waiter, self._find(waiter.message, now), True)

    def _decide_waiter(self, waiter: Waiter, found: Found, over: bool) -> None:
        if not over and self._worth_waiting(waiter.message, found):
            self.waiters.want(waiter, waiter.message.keys[: len(found.located.states)])
            return
        self.waiters.remove(waiter)
        self.counts["locates_awaited" if found.sealed else "locates_timeout" if over else "locates_unknown"] += 1
        self._out.append(Reply(waiter.request, found.located))

    # --- catalogues --------------------------------------------------------------------------------------------------

    def _heard(self, event: events.Heard, now: float) -> None:
        node = self.nodes.by_name.get(event.node)
        if node is None:
            return
        clone, message = node.clone, event.message
        if isinstance(message, Welcome | CatalogueBeat):
            beat = message if isinstance(message, CatalogueBeat) else None
            effects = clone.shows(event.epoch, event.seq, beat, now, self._jitter())
        else:
            delta = message if isinstance(message, Delta) else None
            self.counts["deltas"] += delta is not None
            effects = clone.delta(event.epoch, event.seq, delta, now, self._jitter())
        if event.epoch == clone.epoch:  # not one of a life that was left behind
            node.heard_at = now
        self._carry(node, effects, now)

    def _chunk(self, event: events.ChunkAnswer, now: float) -> None:
        node = self.nodes.by_name.get(event.node)
        if node is None:
            return
        if isinstance(event.answer, SyncChunk):
            self._carry(node, node.clone.chunk(event.answer, now, self._jitter()), now)
        else:
            if isinstance(event.answer, PegaflowError):
                self._out.append(Log("sync_failed", {"peer": node.name, "code": event.answer.code, "text": event.answer.text}))
            self._carry(node, node.clone.failed(event.sync_id, now, self._jitter()), now)

    def _carry(self, node: Node, effects: list[Effect], now: float) -> None:
        """What a clone's step means for everybody else."""
        for effect in effects:
            match effect:
                case Ask(epoch, sync):
                    self._out.append(AskChunk(node.name, epoch, sync))
                case Applied(keys, _):
                    self._changed(keys, now)
                case Wanted(reason):
                    self.counts[f"sync_{reason}"] += 1
                    self._out.append(Log("sync_wanted", {"peer": node.name, "reason": str(reason)}))
                case Swapped(first):
                    self.counts["swaps"] += 1
                    self._swapped(node, first, now)
                case Voided(epoch):
                    self.left.append(Left(node.name, epoch, "replaced", now, None, node.requests))
                    self._show_down(node, epoch, "replaced")
                    self._settle(self.waiters.all(), now)
                case _:
                    assert_never(effect)

    def _changed(self, keys: Collection[bytes], now: float) -> None:
        if len(self.waiters):
            self._settle(self.waiters.concerned(keys), now)

    def _swapped(self, node: Node, first: bool, now: float) -> None:
        if first:
            self._show_up(node)
        self._settle(self.waiters.all(), now)

    def _show_up(self, node: Node) -> None:
        node.shown = node.epoch
        self._out.append(Publish(NodeUp(node.name, node.epoch, node.requests)))
        self._out.append(Log("node_up", {"peer": node.name, "sealed": node.clone.sealed}))

    # --- ends --------------------------------------------------------------------------------------------------------

    def _lose(self, node: Node, reason: str, now: float) -> None:
        epoch = node.epoch
        self.left.append(Left(node.name, epoch, reason, now, node.clone.sealed, node.requests))
        self.nodes.part(node, for_good=reason == "bye")
        self._out.append(Disconnect(node.name))
        self.counts[f"nodes_{reason}"] += 1
        self._show_down(node, epoch, reason)
        self._lost(node, epoch)
        self._settle(self.waiters.all(), now)

    def _lost(self, node: Node, epoch: int) -> None:
        """A node is gone; those who wait hear of it next."""

    def _show_down(self, node: Node, epoch: int, reason: str) -> None:
        if node.shown == epoch:
            self._out.append(Publish(NodeDown(node.name, epoch, reason)))
        self._out.append(Log("node_down", {"peer": node.name, "peer_epoch": f"{epoch:016x}", "reason": reason}))
        node.shown = 0

    def _tick(self, now: float) -> None:
        for node in self.nodes.silent(now):
            self._lose(node, "dead", now)
        for node in list(self.nodes.by_name.values()):
            self._carry(node, node.clone.tick(now, self._jitter()), now)
        for waiter in self.waiters.due(now):
            self._settle_over(waiter, now)
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._out.append(Publish(Beat()))

    # --- looking -----------------------------------------------------------------------------------------------------

    def dump(self, now: float) -> dict[str, Any]:
        """Counts of everything that is held, for "nothing leaked" and for people."""
        return dump(self, now)

    def validate(self) -> None:
        self.nodes.validate()
        self.waiters.validate()
        assert not self._out
        self.index.validate()
        for generation in self.index.generations.values():
            assert generation.node in self.nodes.by_name, "a copy of a node that is gone"
        self._validate_waiters()

    def _validate_waiters(self) -> None:
        for waiter in self.waiters.all():
            if self.waiters.is_unsettled(waiter):
                continue
            found = self._find(waiter.message, waiter.deadline)
            assert self._worth_waiting(waiter.message, found), "a waiter that could be answered, or has nothing to wait for"
            assert waiter.wanted == frozenset(waiter.message.keys[: len(found.located.states)]), "it waits for other keys"
