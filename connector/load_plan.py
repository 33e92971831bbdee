"""Which keys a request is looked up with. Pure arithmetic over token counts.

vLLM always computes the last token itself, so of N ids at most N − 1 need to come from the tier. With a block size of
16 and 51 ids (a prompt of 50 and the token that the prefill engine forwarded):

    block 0 │ block 1 │ block 2 │ rows 48, 49 (tail of 50) · row 50 is computed
    ◀──── keys in full ─────────▶ ◀─ tails ─▶

The keys in full are those of the blocks that lie within the first N − 1 ids. `tails` are the pages that would do for
the block after them, best first: the tail of N − 1 ids, then that of all N (the same prompt again). Where N ends at
a block's end the second one is that block itself.
"""

from __future__ import annotations

from typing import NamedTuple


class LoadPlan(NamedTuple):
    """Blocks [first, last) in full, then one page out of `tails` for block `last`.

    A tail is given as the number of ids that it covers, from the prompt's start; a multiple of the block size means
    the full block that ends there.
    """

    first: int
    last: int
    tails: tuple[int, ...]

    @property
    def empty(self) -> bool:
        return self.first >= self.last and not self.tails

    def covered(self, full: int, tail: int, block_size: int) -> int:
        """Tokens from the prompt's start that are there when `full` keys hit and, unless −1, tail number `tail`."""
        if tail >= 0 and self.first + full == self.last:
            return self.tails[tail]
        return (self.first + full) * block_size


def load_plan(*, prompt: int, known: int, block_size: int, first: int, tails: bool, strict: bool) -> LoadPlan:
    """The plan for a request of `known` ids, the first `prompt` of them its prompt, `first` blocks of it held already.

    `tails`: whether tail pages are asked for. `strict`: no position of the prompt may be computed, so a request that
    was preempted while decoding asks for its prompt alone, with the tail.
    """
    if not tails:
        return LoadPlan(first, known // block_size, ())
    if known == prompt:
        last = (known - 1) // block_size
        wanted: tuple[int, ...] = (known - 1, known)
        needed = known - 1
    else:
        last = (prompt - 1) // block_size
        wanted = (prompt - 1, prompt)
        needed = prompt
        if (known - 1) // block_size != last:
            if not strict:
                return LoadPlan(first, (known - 1) // block_size, ())
            wanted = ((last + 1) * block_size, *wanted)
    start = last * block_size
    if needed <= start:
        return LoadPlan(first, last, ())
    return LoadPlan(first, last, tuple(dict.fromkeys(end for end in wanted if end > start)))
