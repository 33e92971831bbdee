"""Copies between vLLM's blocks and pages of the pool.

On a CPU that is one strided NumPy copy per page and region, which runs at memory speed and without the interpreter
lock. On a GPU pages are moved by streams of the copier's own, ordered behind the work that vLLM had queued when `mark`
was called.
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
    kind = CpuCopier if views[0].device.type == "cpu" else GpuCopier
    return kind(layout, views)


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

    def pin(self, memory: memoryview | None) -> None:
        pass

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


class GpuCopier(Copier):
    """Blocks in GPU memory; the pool is pinned, so that copies neither stage nor block."""

    on_device = True

    def __init__(self, layout: PageLayout, views: Sequence[torch.Tensor]) -> None:
        self.layout = layout
        self._views = list(views)
        self._places = _places([view.shape[1:] for view in views])
        self._device = views[0].device
        # One for each direction: a load must not queue behind the saves.
        self._out, self._in = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)
        self._pinned = 0

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._copy(self._out, memory, blocks, offsets, mark, out=True)

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._copy(self._in, memory, blocks, offsets, mark, out=False)

    def _copy(
        self,
        stream: torch.cuda.Stream,
        memory: memoryview,
        blocks: Sequence[int],
        offsets: Sequence[int],
        mark: object,
        *,
        out: bool,
    ) -> None:
        pool = torch.frombuffer(memory, dtype=torch.uint8)
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                if isinstance(mark, torch.cuda.Event):
                    stream.wait_event(mark)
                for block, offset in zip(blocks, offsets, strict=True):
                    for view, (begin, end, shape) in zip(self._views, self._places, strict=True):
                        page = pool[offset + begin : offset + end].view(shape)
                        if out:
                            page.copy_(view[block], non_blocking=True)
                        else:
                            # Through a contiguous buffer on the device: a strided copy from the host would go run by run.
                            view[block].copy_(page.to(self._device, non_blocking=True))
        finally:
            # Also after an error: whatever was queued still runs, and nobody may count it as over.
            stream.synchronize()

    def pin(self, memory: memoryview | None) -> None:
        runtime = torch.cuda.cudart()
        if self._pinned:
            runtime.cudaHostUnregister(self._pinned)
            self._pinned = 0
        if memory is not None:
            pool = torch.frombuffer(memory, dtype=torch.uint8)
            if int(runtime.cudaHostRegister(pool.data_ptr(), pool.numel(), 0)) == 0:
                self._pinned = pool.data_ptr()


def _places(shapes: Sequence[Sequence[int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Of each region: where its bytes begin and end in a page, and their shape."""
    places: list[tuple[int, int, tuple[int, ...]]] = []
    begin = 0
    for shape in shapes:
        end = begin + int(np.prod(shape))
        places.append((begin, end, tuple(shape)))
        begin = end
    return places
