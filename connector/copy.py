"""Copies between vLLM's blocks and pages of the pool, on a CPU: one strided NumPy copy per page and region, which runs at memory
speed and without the interpreter lock. For blocks on a GPU see `gpu_copier.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pegaflow.common.pages import PageLayout
from pegaflow.connector.copier import Copier
from pegaflow.connector.strides import LayerTensor, Region, lay_out

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def make_copier(caches: Mapping[str, torch.Tensor], num_blocks: int, block_size: int) -> Copier:
    """For the tensors of `register_kv_caches`. Raises StartRefused where their blocks cannot be told."""
    tensors = [
        LayerTensor(
            name,
            tensor.untyped_storage().data_ptr(),
            int(tensor.storage_offset()),
            tensor.element_size(),
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.stride(),
        )
        for name, tensor in caches.items()
    ]
    layout, regions = lay_out(tensors, num_blocks, block_size)
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in caches.values()}
    views = [_view(storages[region.storage], region, num_blocks) for region in regions]
    if views[0].device.type == "cpu":
        return CpuCopier(layout, views)
    from pegaflow.connector.gpu_copier import GpuCopier

    return GpuCopier(layout, views)


def _view(tensor: torch.Tensor, region: Region, num_blocks: int) -> torch.Tensor:
    """All blocks of a region as bytes: [blocks, *dims, run]."""
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    shape = (num_blocks, *(count for count, _ in region.dims), region.run)
    strides = (region.block_stride, *(stride for _, stride in region.dims), 1)
    return storage.as_strided(shape, strides, region.offset)


class CpuCopier(Copier):
    """Blocks in main memory."""

    def __init__(self, layout: PageLayout, views: Sequence[torch.Tensor]) -> None:
        self.layout = layout
        self._views: list[Bytes] = [view.numpy() for view in views]
        self._places = _places([view.shape[1:] for view in views])

    def mark(self) -> object:
        return None

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        pool: Bytes = np.frombuffer(memory, np.uint8)
        for block, offset in zip(blocks, offsets, strict=True):
            for view, (begin, end, shape) in zip(self._views, self._places, strict=True):
                np.copyto(pool[offset + begin : offset + end].reshape(shape), view[block])

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        pool: Bytes = np.frombuffer(memory, np.uint8)
        for block, offset in zip(blocks, offsets, strict=True):
            for view, (begin, end, shape) in zip(self._views, self._places, strict=True):
                np.copyto(view[block], pool[offset + begin : offset + end].reshape(shape))


def _places(shapes: Sequence[Sequence[int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Of each region: where its bytes begin and end in a page, and their shape."""
    places: list[tuple[int, int, tuple[int, ...]]] = []
    begin = 0
    for shape in shapes:
        end = begin + int(np.prod(shape))
        places.append((begin, end, tuple(shape)))
        begin = end
    return places
