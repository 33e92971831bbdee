"""vLLM's block pool (`v1/core/block_pool.py`): references, the queue of free blocks, and the prefix cache over both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oracle.verdict import Verdict

NULL = 0


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
        self.free: OrderedDict[Block, None] = OrderedDict.fromkeys(self.blocks[NULL + 1 :])
        # The same content may be in several blocks: the oldest of them is the one that is found.
        self.cached: dict[bytes, dict[int, Block]] = {}
        # How many copies of saves are still to read each block, at all ranks: told by the orders, not by the pins.
        self.to_read = [0] * blocks

    def get_cached_block(self, content: bytes, groups: Sequence[int]) -> list[Block] | None:
        blocks = self.cached.get(content)
        return [next(iter(blocks.values()))] if blocks else None

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._verdict.demand(block.block_id != NULL, "the null block is touched")
            if block.refs == 0:
                del self.free[block]
            block.refs += 1

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        """What is cached goes to the end of the queue; all else is the first to be used again."""
        first: list[Block] = []
        for block in blocks:
            block.refs -= 1
            self._verdict.demand(block.refs >= 0, f"block {block.block_id} was freed too often")
            if block.refs == 0 and block.content is None:
                first.append(block)
            elif block.refs == 0:
                self.free[block] = None
        for block in reversed(first):
            self.free[block] = None
            self.free.move_to_end(block, last=False)

    def take(self, count: int) -> list[Block]:
        """Fresh blocks, from the head of the queue."""
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._verdict.demand(not self.to_read[block.block_id], f"block {block.block_id} is reused while a save reads it")
            self._forget(block)
            block.refs = 1
        return taken

    def cache(self, table: Sequence[int], contents: Sequence[bytes]) -> None:
        """The first blocks of a table can be found from now on."""
        for number, content in zip(table, contents, strict=False):
            block = self.blocks[number]
            if block.content is None:
                block.content = content
                self.cached.setdefault(content, {})[number] = block

    def reset(self) -> bool:
        """`reset_prefix_cache`: only while nobody holds a block."""
        if len(self.free) != len(self.blocks) - 1:
            return False
        for block in self.blocks:
            block.content = None
        self.cached.clear()
        return True

    def _forget(self, block: Block) -> None:
        if block.content is not None:
            same = self.cached[block.content]
            del same[block.block_id]
            if not same:
                del self.cached[block.content]
            block.content = None
