"""Pages by way of a contiguous buffer, so that scattered layers cost one gather per region and the host one copy per page.

    blocks of all regions ──gather──▶ [pages, page bytes] ──one copy per page──▶ pool         (save)
    pool ──one copy per page──▶ [pages, page bytes] ──scatter──▶ blocks of all regions        (load)

Plain torch on whatever device the tensors are on; streams are the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

WIDTHS = (torch.int64, torch.int32, torch.int16)
"""Wider elements move more bytes per thread of a kernel."""


class Staging:
    """`regions`: [blocks, *dims, run] of bytes each, in page order. `pages`: how many the buffer holds.

    The buffer belongs to one stream at a time.
    """

    def __init__(self, regions: Sequence[torch.Tensor], pages: int) -> None:
        page_bytes = sum(region[0].numel() for region in regions)
        self.pages = pages
        self.buffer = torch.empty((pages, page_bytes), dtype=torch.uint8, device=regions[0].device)
        self._regions: list[tuple[torch.Tensor, torch.Tensor]] = []
        begin = 0
        for region in regions:
            count = region[0].numel()
            part = self.buffer[:, begin : begin + count]
            wide, narrow = _widest(region, part)
            self._regions.append((wide, narrow.view(pages, *wide.shape[1:])))
            begin += count

    def gather(self, blocks: torch.Tensor) -> None:
        """The blocks' bytes → the first pages of the buffer. `blocks`: indices, on the device."""
        count = blocks.numel()
        for region, pages in self._regions:
            pages[:count].copy_(region.index_select(0, blocks))

    def scatter(self, blocks: torch.Tensor) -> None:
        """The first pages of the buffer → the blocks' bytes."""
        count = blocks.numel()
        for region, pages in self._regions:
            region.index_copy_(0, blocks, pages[:count])


def _widest(region: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as the widest elements that fit into every run and every distance."""
    for width in WIDTHS:
        try:
            return region.view(width), part.view(width)
        except RuntimeError:  # a run, a distance or the place is not a multiple of it
            continue
    return region, part


def pieces(offset: int, length: int, seam: int) -> Iterator[tuple[int, int]]:
    """[offset, offset + length) cut at multiples of `seam`, as (begin, end) in it: CUDA copies no range over two pinned ones."""
    begin = 0
    while begin < length:
        end = min(length, ((offset + begin) // seam + 1) * seam - offset)
        yield begin, end
        begin = end
