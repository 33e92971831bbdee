"""How the blocks of vLLM's KV cache lie in memory, and the page layout that follows. Pure arithmetic over strides.

vLLM hands over one tensor per layer, each with a dimension of blocks somewhere in it. What one block of a layer looks
like is its other dimensions, in the order of their strides, with the contiguous ones melted into one run of bytes:

    tensor [blocks, 2 heads, 32 tokens, 128] float32, contiguous  ─▶  one run of 32,768 bytes
    tensor [2, blocks, 16 tokens, 8 heads, 64] bfloat16           ─▶  two runs of 16,384 bytes, far apart

Layers of equal shape at equal distances in one storage make one region, so that a page is one strided copy instead of
one copy per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pegaflow.common.pages import PageLayout
from pegaflow.connector.options import StartRefused


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """A tensor as `register_kv_caches` gives it. `storage`: identity of its storage; strides and offset in elements."""

    name: str
    storage: int
    offset: int
    itemsize: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Layers that one strided copy moves. All in bytes; block b starts at `offset + b * block_stride` in the storage.

    `dims` are (count, stride) from the outermost; below them lie `run` contiguous bytes.
    """

    storage: int
    offset: int
    block_stride: int
    dims: tuple[tuple[int, int], ...]
    run: int

    @property
    def bytes(self) -> int:
        total = self.run
        for count, _ in self.dims:
            total *= count
        return total


def lay_out(tensors: Sequence[LayerTensor], num_blocks: int, block_size: int) -> tuple[PageLayout, tuple[Region, ...]]:
    """The page layout of a rank and the regions that make up a page, in page order. Raises StartRefused."""
    seen: set[tuple[int, int]] = set()
    layers: list[tuple[str, int, str]] = []
    regions: list[Region] = []
    for tensor in tensors:
        if (tensor.storage, tensor.offset) in seen:
            # Layers that share their KV are registered under each name, with the same memory.
            continue
        seen.add((tensor.storage, tensor.offset))
        region, form = _region(tensor, num_blocks)
        layers.append((tensor.name, region.bytes, form))
        regions.append(region)
    if not layers:
        raise StartRefused("no_kv_cache", "vLLM registered no KV cache")
    return PageLayout.of(block_size, layers), tuple(_melt(regions))


def _region(tensor: LayerTensor, num_blocks: int) -> tuple[Region, str]:
    size = tensor.itemsize
    dims = list(zip(tensor.shape, tensor.strides, strict=True))
    # A cache block may be split into several kernel blocks, which then follow each other.
    places = [place for place, (count, _) in enumerate(dims) if count and count % num_blocks == 0]
    exact = [place for place in places if dims[place][0] == num_blocks]
    candidates = exact or places
    if len(candidates) > 1 and 0 in candidates:
        candidates = [0]
    if len(candidates) != 1:
        raise StartRefused(
            "block_dimension",
            f"layer {tensor.name} has the shape {tensor.shape}, in which the {num_blocks} blocks cannot be told: not supported",
        )
    count, stride = dims.pop(candidates[0])
    split = count // num_blocks
    if split > 1:
        dims.insert(0, (split, stride))
    inner = [(amount, step * size) for amount, step in dims if amount != 1]
    order = sorted(range(len(inner)), key=lambda place: -inner[place][1])
    run = size
    runs: list[tuple[int, int]] = []
    for amount, step in reversed([inner[place] for place in order]):
        if not runs and step == run:
            run *= amount
        else:
            runs.insert(0, (amount, step))
    form = f"{tensor.dtype}[{','.join(str(amount) for amount, _ in inner)}]@{','.join(map(str, order))}"
    return Region(tensor.storage, tensor.offset * size, stride * split * size, tuple(runs), run), form


def _melt(regions: Sequence[Region]) -> list[Region]:
    """Neighbours in page order at one distance become one region with a dimension more."""
    melted: list[Region] = []
    index = 0
    while index < len(regions):
        first = regions[index]
        count, step = 1, 0
        for other in regions[index + 1 :]:
            distance = other.offset - regions[index + count - 1].offset
            alike = (other.storage, other.block_stride, other.dims, other.run) == (
                first.storage,
                first.block_stride,
                first.dims,
                first.run,
            )
            if not alike or distance <= 0 or (count > 1 and distance != step):
                break
            step = distance
            count += 1
        dims = ((count, step), *first.dims) if count > 1 else first.dims
        melted.append(Region(first.storage, first.offset, first.block_stride, dims, first.run))
        index += count
    return melted
