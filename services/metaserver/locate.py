"""Locate, pure: from who holds which keys to the answer.

The keys of one question share few sets of holders, so each set is judged once; neighbours mostly share one, so columns are put
together from runs of keys. An answer ends with the first hole: a key among the full ones that nobody has or promises. What
follows is of no use to somebody who loads a prefix.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import mul
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


Runs = tuple[Sequence[Hashable], Sequence[int]]
"""Sets of holders, and how many keys in a row have each."""


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
        self._counts: list[int] = []
        self._held: dict[Hashable, Holders] = {}
        self._states: dict[Hashable, bytes] = {}
        self._column = b""

    def stages(self) -> Iterator[Sequence[bytes]]:
        """Keys to look up; each answer goes to `take` before the next stage is asked for."""
        keys, at = self._message.keys, 0
        while at < len(keys) and not (at and self._has_hole(at)):
            step = _STAGE if not at else 16 * _STAGE
            yield keys if not at and len(keys) <= 2 * _STAGE else keys[at : at + step]
            at = len(self._column)

    def take(self, runs: Runs) -> None:
        """The sets of holders of the keys of the stage."""
        numbers, counts = runs
        states = self._states
        for number in set(numbers) - states.keys():
            others = [held for held in self._holders(number) if held[0].name != self._message.asker]
            self._held[number] = others
            best = max((state for _, entry in others if (state := entry_state(entry)) <= SEALED), default=GONE)
            states[number] = bytes((best,))
        self._numbers += numbers
        self._counts += counts
        self._column += _spread(states, numbers, counts)

    def _has_hole(self, end: int) -> bool:
        """Among the full keys: tails are alternatives, and make none."""
        full = max(0, len(self._message.keys) - self._message.tails)
        return not self._message.holes and self._column.find(GONE, 0, min(end, full)) >= 0

    def _cut(self, end: int) -> None:
        """Nothing from key `end` on counts."""
        self._column = self._column[:end]
        for at, reached in enumerate(itertools.accumulate(self._counts)):
            if reached >= end:
                self._counts[at] -= reached - end
                del self._numbers[at + 1 :], self._counts[at + 1 :]
                return

    def found(self, turn: int, now: float) -> Found:
        """The answer, with up to WIDTH owners per key. Once only."""
        if not self._message.holes:
            hole = self._column.find(GONE, 0, max(0, len(self._message.keys) - self._message.tails))
            if hole >= 0:
                self._cut(hole + 1)
        column, pending = self._column, PENDING in self._column
        if SEALED not in column:
            return Found(Located(column, 1, array("I", [NO_OWNER]) * len(column), [], u64s(), []), False, pending)
        sealed = {number: [row for row in self._held[number] if entry_state(row[1]) == SEALED] for number in set(self._numbers)}
        nodes, late = self._order(sealed, turn, now)
        ranks = {node: rank for rank, node in enumerate(nodes)}
        most = max(map(len, sealed.values()))
        width = min(self._message.width or WIDTH, MAX_WIDTH, most)
        owned: dict[Hashable, bytes] = {}
        for number, rows in sealed.items():
            if len(rows) > 1:
                # In memory before on disk, whatever the loads: to read from disk costs an owner more than to be read.
                rows.sort(key=lambda row: (late[row[0]], entry_level(row[1]), ranks[row[0]]))
            mine = [ranks[node] for node, _ in rows[:width]]
            owned[number] = array("I", mine + [NO_OWNER] * (width - len(mine))).tobytes()
        owners = array("I", _spread(owned, self._numbers, self._counts))
        located = Located(
            column,
            width,
            owners,
            [node.name for node in nodes],
            u64s([node.epoch for node in nodes]),
            [node.requests for node in nodes],
        )
        return Found(located, True, pending)

    def _order(
        self, sealed: dict[Hashable, list[tuple[Node, int]]], turn: int, now: float
    ) -> tuple[list[Node], dict[Node, bool]]:
        """Nodes for all keys, and which of them are doubtful: suspects and those that drain.

        These come last; then the less loaded first, in classes of twice the load, because a figure
        half a second old says no more; then whoever holds most of the keys, so that few peers are needed; then in turns."""
        held = {node: 0 for rows in sealed.values() for node, _ in rows}
        if len(held) == 1:  # PERF: mostly
            return list(held), dict.fromkeys(held, False)
        for number, count in zip(self._numbers, self._counts, strict=True):
            for node, _ in sealed[number]:
                held[node] += count
        late = {node: node.draining or node.state(now) is NodeState.SUSPECT for node in held}
        nodes = sorted(held, key=lambda node: node.number)
        by = turn % len(nodes)

        def rank(node: Node) -> tuple[bool, int, int]:
            return late[node], node.load.bit_length(), -held[node]

        return sorted(nodes[by:] + nodes[:by], key=rank), late


def _spread(cells: dict[Hashable, bytes], numbers: Sequence[Hashable], counts: Sequence[int]) -> bytes:
    """The column in which each run has its cell, as often as it has keys."""
    if len(numbers) == 1:
        return cells[numbers[0]] * counts[0]
    return b"".join(map(mul, map(cells.__getitem__, numbers), counts))
