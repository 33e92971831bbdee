"""Locate, pure: from who holds which keys to the answer.

The keys of one question share few sets of holders, so each set is judged once and a key costs two look-ups. An answer ends with
the first hole: a key among the full ones that nobody has or promises. What follows is of no use to somebody who loads a prefix.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from pegaflow.common.bus.generation import entry_level, entry_state
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, PENDING, SEALED, Locate, Located
from pegaflow.services.metaserver.nodes import Node, NodeState

WIDTH = 2  # a second one for when the first does not deliver
MAX_WIDTH = 64
_STAGE = 512  # keys looked up before the first hole is looked for; then 16 times as many

Holders = Sequence[tuple[Node, int]]
"""Who has the keys of a set, and as what: node and entry."""


class Found(NamedTuple):
    """What is known of some keys. `sealed`: some key can be fetched. `pending`: some other key is promised."""

    located: Located
    sealed: bool
    pending: bool


class Question:
    """One locate while it is being looked up, stage by stage."""

    def __init__(self, message: Locate, holders: Callable[[Hashable], Holders]) -> None:
        self._message = message
        self._holders = holders
        self._numbers: list[Hashable] = []
        self._held: dict[Hashable, Holders] = {}
        self._states: dict[Hashable, int] = {}
        self._column = b""

    def stages(self) -> Iterator[Sequence[bytes]]:
        """Keys to look up; each answer goes to `take` before the next stage is asked for."""
        keys, at = self._message.keys, 0
        while at < len(keys) and not (at and self._has_hole(at)):
            step = _STAGE if not at else 16 * _STAGE
            yield keys if not at and len(keys) <= 2 * _STAGE else keys[at : at + step]
            at = len(self._numbers)

    def take(self, sets: Sequence[Hashable]) -> None:
        """The set of holders of each key of the stage."""
        for number in set(sets) - self._states.keys():
            others = [held for held in self._holders(number) if held[0].name != self._message.asker]
            self._held[number] = others
            self._states[number] = max((state for _, entry in others if (state := entry_state(entry)) <= SEALED), default=GONE)
        self._numbers += sets
        if len(self._states) == 1:
            self._column += bytes((self._states[sets[0]],)) * len(sets)
        else:
            self._column += bytes(map(self._states.__getitem__, sets))

    def _has_hole(self, end: int) -> bool:
        return not self._message.holes and self._column.find(GONE, 0, end) >= 0

    def found(self, turn: int, now: float) -> Found:
        """The answer, with up to WIDTH owners per key."""
        column, numbers = self._column, self._numbers
        if not self._message.holes:
            hole = column.find(GONE, 0, max(0, len(self._message.keys) - self._message.tails))
            if hole >= 0:
                column, numbers = column[: hole + 1], numbers[: hole + 1]
        if SEALED not in column:
            located = Located(column, 1, array("I", [NO_OWNER]) * len(column), [], u64s(), [])
            return Found(located, False, PENDING in column)
        amounts = Counter(numbers) if len(self._states) > 1 else Counter({numbers[0]: len(numbers)})
        nodes, late = self._order(amounts, turn, now)
        ranks = {node: rank for rank, node in enumerate(nodes)}
        ranked: dict[Hashable, list[int]] = {}
        for number in amounts:
            # In memory before on disk, whatever the loads: to read from disk costs an owner more than to be read.
            sealed = [row for row in self._held[number] if entry_state(row[1]) == SEALED]
            rows = sorted((late[node], entry_level(entry), ranks[node]) for node, entry in sealed)
            ranked[number] = [row[2] for row in rows]
        width = min(self._message.width or WIDTH, MAX_WIDTH, max(map(len, ranked.values())))
        owned = {number: array("I", [*mine, *[NO_OWNER] * width][:width]).tobytes() for number, mine in ranked.items()}
        if len(amounts) == 1:
            owners = array("I", owned[numbers[0]]) * len(numbers)
        else:
            owners = array("I", b"".join(map(owned.__getitem__, numbers)))
        located = Located(
            column,
            width,
            owners,
            [node.name for node in nodes],
            u64s(node.epoch for node in nodes),
            [node.requests for node in nodes],
        )
        return Found(located, True, PENDING in column)

    def _order(self, amounts: Counter[Hashable], turn: int, now: float) -> tuple[list[Node], dict[Node, bool]]:
        """Nodes for all keys, and which of them are doubtful: suspects and those that drain.

        These come last; then the less loaded first, in classes of twice the load, because a figure
        half a second old says no more; then whoever holds most of the keys, so that few peers are needed; then in turns."""
        held: Counter[Node] = Counter()
        for number, amount in amounts.items():
            for node, entry in self._held[number]:
                if entry_state(entry) == SEALED:
                    held[node] += amount
        nodes = sorted(held, key=lambda node: node.number)
        late = {node: node.draining or node.state(now) is NodeState.SUSPECT for node in nodes}
        by = turn % len(nodes)

        def rank(node: Node) -> tuple[bool, int, int]:
            return late[node], node.load.bit_length(), -held[node]

        return sorted(nodes[by:] + nodes[:by], key=rank), late
