"""The forward pass: each row is computed from its token and from the row before it, as the memory has it."""

from __future__ import annotations

from oracle.batch import Item
from oracle.block_pool import BlockPool
from oracle.memory import Memory
from oracle.prefixes import BLOCK, WRONG_TOKEN, Prefixes
from oracle.request import Status
from oracle.shape import Shape
from oracle.verdict import Verdict


class Forward:
    def __init__(self, prefixes: Prefixes, memory: Memory, pool: BlockPool, shape: Shape, verdict: Verdict) -> None:
        self._prefixes = prefixes
        self._memory = memory
        self._pool = pool
        self._fenced = shape.fenced
        self._verdict = verdict

    def run(self, item: Item) -> None:
        """Checks what attention reads, then writes: known tokens, accepted drafts, rejected drafts."""
        request, start = item.request, item.real_start
        right = self._memory.holds(item.table, request.rows(start), start)
        self._verdict.demand(right, f"{request.request_id} computes row {start} on top of wrong rows")
        stamp = self._memory.last(item.table, start, request.root)
        # Without fences a block may be free before the last batch that writes it has run; whoever gets it writes later.
        owner = self._fenced or (item.life == request.life and request.status is Status.RUNNING)
        last_right = start + item.count - item.drafts + item.accepted
        for position in range(start, start + item.count):
            stamp = self._prefixes.after(stamp, request.token(position) if position < last_right else WRONG_TOKEN)
            self._memory.write(item.table, position, stamp)
            free = self._pool.blocks[item.table[position // BLOCK]].refs == 0
            self._verdict.demand(not (free and owner), f"{request.request_id} writes into a free block")
