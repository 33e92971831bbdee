"""Nodes, pure: who lives where, in which life, and which lives are over (docs/protocol.md 5.2).

A node is met by its hello. Its sign of life is any hello or catalogue event; silence for DEAD_S is death. A name belongs to one
endpoint at a time: whoever comes second under a living name is refused. The same endpoint in a new life replaces the old one at
once, because two processes cannot listen there. Lives left behind are remembered per name and never accepted again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum

from pegaflow.common.bus.clone import REMEMBERED_EPOCHS, Clone, Effect
from pegaflow.common.bus.generation import Generation
from pegaflow.common.bus.sync_gate import SyncGate
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import Hello

DEAD_S = 2.5
SUSPECT_S = 1.25
MAX_NODES = 1024
MAX_NAMES = 4 * MAX_NODES
MAX_NAME = 64
LEASED_PER_READ = 100  # a tenth of a pool under leases counts like one more read


class NodeState(StrEnum):
    """`syncing`: its clone is not whole yet. `suspect`: silent for a while, its entries still count. `draining`: named last."""

    SYNCING = "syncing"
    UP = "up"
    SUSPECT = "suspect"
    DRAINING = "draining"


class Node:
    """One tier as its last hello described it. `shown`: the life that `NodeUp` was published for (0: none). `elsewhere`: a store
    that metaservers share has a whole copy of this life's catalogue. `unheard`: connecting failed; the next hello has it tried
    again."""

    __slots__ = (
        "clone",
        "control",
        "draining",
        "elsewhere",
        "events",
        "heard_at",
        "load",
        "name",
        "number",
        "package",
        "requests",
        "shown",
        "unheard",
    )

    def __init__(self, hello: Hello, number: int, clone: Clone, now: float) -> None:
        self.name, self.number = hello.node, number
        self.clone = clone
        self.shown = 0
        self.elsewhere = False
        self.unheard = False
        self.refresh(hello, now)

    def refresh(self, hello: Hello, now: float) -> None:
        self.requests, self.events, self.control = hello.requests, hello.events, hello.control
        self.package, self.draining = hello.package, hello.draining
        self.load = hello.reads + hello.leased // LEASED_PER_READ
        self.heard_at = now

    @property
    def epoch(self) -> int:
        return self.clone.epoch

    @property
    def whole(self) -> bool:
        return self.clone.whole or self.elsewhere

    def state(self, now: float) -> NodeState:
        if not self.whole:
            return NodeState.SYNCING
        if now - self.heard_at >= SUSPECT_S:
            return NodeState.SUSPECT
        return NodeState.DRAINING if self.draining else NodeState.UP


class Nodes:
    """Nodes by name. `generations`: makes the store for a copy of this node's catalogue."""

    def __init__(self, epoch: int, sync_ids: Iterator[int], generations: Callable[[str], Generation]) -> None:
        self._epoch, self._sync_ids, self._generations = epoch, sync_ids, generations
        self._numbers = itertools.count(1)
        self.gate = SyncGate()
        self.by_name: dict[str, Node] = {}
        self._left: dict[str, deque[int]] = {}
        self._silenced: dict[str, int] = {}  # lives that ended in silence and may come back

    def hello(self, hello: Hello, now: float) -> tuple[Node, bool, list[Effect]]:
        """The node, whether it must be connected (anew), and what became of its clone. Raises `RemoteError` for a refusal."""
        name = hello.node
        if not 0 < len(name) <= MAX_NAME or not hello.epoch:
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"a node has a name of 1 to {MAX_NAME} characters and an epoch other than 0")
        node = self.by_name.get(name)
        living = node is not None and node.epoch != hello.epoch and now - node.heard_at < DEAD_S
        if node is not None and living and node.requests != hello.requests:
            raise RemoteError(
                ErrorCode.DUPLICATE_NODE,
                f"node {name!r} lives at {node.requests}, so {hello.requests} cannot have the name; give it another --node",
            )
        if hello.epoch in self._left.get(name, ()):
            raise RemoteError(
                ErrorCode.WRONG_EPOCH, f"life {hello.epoch:016x} of node {name!r} was left behind; restart the tier"
            )
        if node is None:
            if len(self.by_name) >= MAX_NODES:
                raise RemoteError(ErrorCode.BUSY, f"{MAX_NODES} nodes are known already")
            left = self._remembered(name)
            silenced = self._silenced.pop(name, 0)
            if silenced not in (0, hello.epoch):
                left.append(silenced)
            clone = Clone(self._epoch, self._sync_ids, lambda: self._generations(name), left, self.gate)
            node = self.by_name[name] = Node(hello, next(self._numbers), clone, now)
            return node, True, node.clone.meet(hello.epoch)
        moved = (node.requests, node.events) != (hello.requests, hello.events)
        reconnect = moved or node.epoch != hello.epoch or node.unheard
        node.unheard = False
        node.refresh(hello, now)
        return node, reconnect, node.clone.meet(hello.epoch)

    def _remembered(self, name: str) -> deque[int]:
        """The lives that this name left behind; the name unused for longest is forgotten when there are too many."""
        left = self._left.pop(name, None)
        if left is None:
            left = deque(maxlen=REMEMBERED_EPOCHS)
            if len(self._left) >= MAX_NAMES:
                oldest = next(other for other in self._left if other not in self.by_name)
                del self._left[oldest]
                self._silenced.pop(oldest, None)
        self._left[name] = left
        return left

    def part(self, node: Node, *, for_good: bool) -> None:
        """The node is out. Not `for_good`: the same life may come back (its machine was cut off, its process stopped)."""
        del self.by_name[node.name]
        if not for_good:
            self._silenced[node.name] = node.epoch
        node.clone.leave(for_good=for_good)

    def next_to_sync(self) -> Node | None:
        """Whose snapshot has waited for a place that is free now."""
        clone = self.gate.next()
        return next((node for node in self.by_name.values() if node.clone is clone), None) if clone is not None else None

    def silent(self, now: float) -> list[Node]:
        """Nodes without a sign of life for DEAD_S."""
        return [node for node in self.by_name.values() if now - node.heard_at >= DEAD_S]

    def validate(self) -> None:
        for name, node in self.by_name.items():
            assert node.name == name and node.epoch
            assert node.clone.left is self._left[name]
            assert node.shown in (0, node.epoch)
            assert bool(node.shown) == node.whole
            node.clone.validate()
