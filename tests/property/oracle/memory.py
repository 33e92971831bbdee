"""The KV memory of all ranks: per block a stamp for each row, rubbish at first, never cleaned."""

from __future__ import annotations

from collections.abc import Sequence

from oracle.prefixes import BLOCK, RUBBISH


class Memory:
    def __init__(self, ranks: int, blocks: int) -> None:
        self.rows = [[[RUBBISH] * BLOCK for _ in range(blocks)] for _ in range(ranks)]
        # Per rank the blocks that a load may write, with the request they belong to.
        self.loading: list[dict[int, str]] = [{} for _ in range(ranks)]

    def write(self, table: Sequence[int], position: int, stamp: int) -> None:
        block, row = table[position // BLOCK], position % BLOCK
        for rank in self.rows:
            rank[block][row] = stamp

    def last(self, table: Sequence[int], end: int, root: int) -> int:
        """Stamp of the row before `end`."""
        return self.rows[0][table[(end - 1) // BLOCK]][(end - 1) % BLOCK] if end else root

    def holds(self, table: Sequence[int], truth: Sequence[int], end: int) -> bool:
        """Whether the first `end` rows of a block table are those of `truth`, at every rank."""
        for index in range(-(-end // BLOCK)):
            wanted = truth[index * BLOCK : min(end, (index + 1) * BLOCK)]
            block, count = table[index], len(wanted)
            for rank in self.rows:
                if rank[block][:count] != wanted:
                    return False
        return True
