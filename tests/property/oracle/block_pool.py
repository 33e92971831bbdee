"""vLLM's block pool (`v1/core/block_pool.py`): references, the queue of free blocks, and the prefix cache over both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oracle.verdict import Verdict


@dataclass(slots=True, eq=False)
class Block:
    block_id: int
    refs: int = 0
    content: bytes | None = None


class BlockPool:
    enable_caching = True

    def __init__(self, blocks: int, verdict: Verdict) -> None:
        self._verdict = verdict
        self.blocks = [Block(number) for number in range(blocks)]
        self.free: dict[Block, None] = dict.fromkeys(self.blocks)
        self.cached: dict[bytes, Block] = {}
        # How many copies of saves are still to read each block, at all ranks: told by the orders, not by the pins.
        self.to_read = [0] * blocks

    def get_cached_block(self, content: bytes, groups: Sequence[int]) -> list[Block] | None:
        block = self.cached.get(content)
        return None if block is None else [block]

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.refs == 0:
                self.free.pop(block, None)
            block.refs += 1

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.refs -= 1
            self._verdict.demand(block.refs >= 0, f"block {block.block_id} was freed too often")
            if block.refs == 0:
                self.free[block] = None

    def take(self, count: int) -> list[Block]:
        """Fresh blocks, the longest free ones first."""
        taken = [block for block, _ in zip(self.free, range(count), strict=False)]
        for block in taken:
            del self.free[block]
            self._verdict.demand(not self.to_read[block.block_id], f"block {block.block_id} is reused while a save reads it")
            if block.content is not None:
                del self.cached[block.content]
                block.content = None
            block.refs = 1
        return taken

    def cache(self, table: Sequence[int], hashes: Sequence[bytes], full: int) -> None:
        """The first `full` blocks of a table can be found from now on."""
        for number, content in zip(table[:full], hashes, strict=False):
            block = self.blocks[number]
            if block.content is None and content not in self.cached:
                block.content = content
                self.cached[content] = block
