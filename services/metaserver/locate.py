"""Locate, pure: who holds these keys? The catalogue is the clones side by side; there is no second index to keep in step.

PERF: a key costs one dictionary probe per node that holds any of the keys, and no object. 1,000 keys over a few nodes take some
100 µs; an index over all nodes would make that independent of their number, but would have to be rebuilt at every swap.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, PENDING, SEALED, Located
from pegaflow.services.metaserver.nodes import Node, NodeState

WIDTH = 2  # a second one for when the first does not deliver; `locate` fills two places


class Found(NamedTuple):
    """What is known of some keys. `sealed`: some key can be fetched. `pending`: some other key is promised."""

    located: Located
    sealed: bool
    pending: bool


def locate(nodes: Iterable[Node], asker: str, keys: Sequence[bytes], turn: int, now: float) -> Found:
    """Up to WIDTH owners per key on nodes other than `asker`.

    Whoever holds most of the keys comes first, so that the asker needs few peers; suspects come last; among equals the order
    turns with `turn`, so that readers spread.
    """
    columns: list[tuple[bool, int, Node, bytes]] = []
    for node in _turned([node for node in nodes if node.name != asker], turn):
        entries = node.clone.entries
        if not entries or entries.keys().isdisjoint(keys):
            continue
        column = bytes([entry & 0xFF for entry in map(entries.get, keys, repeat(GONE))])
        columns.append((node.state(now) is NodeState.SUSPECT, -column.count(SEALED), node, column))
    columns.sort(key=lambda row: row[:2])
    states = bytearray(len(keys))  # GONE
    owners = array("I", [NO_OWNER]) * (WIDTH * len(keys))
    listed: list[Node] = []
    for _, sealed, node, column in columns:
        if sealed:
            index = len(listed)
            for i, state in enumerate(column):
                if state == SEALED:
                    states[i] = SEALED
                    place = WIDTH * i
                    if owners[place] != NO_OWNER:
                        place += 1
                    if owners[place] == NO_OWNER:
                        owners[place] = index
            listed.append(node)
        if PENDING in column:
            for i, state in enumerate(column):
                if state == PENDING and states[i] == GONE:
                    states[i] = PENDING
    located = Located(
        bytes(states),
        WIDTH,
        owners,
        [node.name for node in listed],
        u64s(node.epoch for node in listed),
        [node.requests for node in listed],
    )
    return Found(located, SEALED in states, PENDING in states)


def _turned(nodes: list[Node], turn: int) -> list[Node]:
    by = turn % len(nodes) if nodes else 0
    return nodes[by:] + nodes[:by]
