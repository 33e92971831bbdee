"""Copies between vLLM's blocks in GPU memory and pages of the pool, on streams of its own.

    vLLM's stream   … step ─── event (mark) ─── next step …
    ours                          └─ wait ─▶ gather ─▶ copies to the pool ─▶ synchronize: the call returns

The pool is pinned piece by piece as the tier backs it; what is not pinned yet is copied all the same, only slower. Rules that
this follows: CUDA C++ Programming Guide, "Page-Locked Host Memory", "Streams", "Prohibited and Unhandled Operations" (graphs).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from pegaflow.common.pages import PageLayout
from pegaflow.connector.copier import PIN_BYTES, Copier
from pegaflow.connector.cudart import host_register, host_unregister, require_runtime, uncaptured
from pegaflow.connector.staging import Staging, pieces

STAGING_BYTES = 32 << 20
"""Of device memory, for each direction."""


class GpuCopier(Copier):
    """`regions`: [blocks, *dims, run] of bytes on the device, in page order. One thread may save while another one loads."""

    on_device = True

    def __init__(self, layout: PageLayout, regions: Sequence[torch.Tensor]) -> None:
        require_runtime()
        self.layout = layout
        self._device = regions[0].device
        pages = max(1, STAGING_BYTES // layout.page_bytes)
        # One for each direction: a load must not queue behind the saves.
        self._out, self._in = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)
        self._outgoing, self._incoming = Staging(regions, pages), Staging(regions, pages)
        self._pinned: list[int] = []

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._copy(self._out, self._outgoing, memory, blocks, offsets, mark)

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._copy(self._in, self._incoming, memory, blocks, offsets, mark)

    def _copy(
        self,
        stream: torch.cuda.Stream,
        staging: Staging,
        memory: memoryview,
        blocks: Sequence[int],
        offsets: Sequence[int],
        mark: object,
    ) -> None:
        out = staging is self._outgoing
        pool = _bytes_of(memory)
        with torch.cuda.device(self._device), torch.cuda.stream(stream), uncaptured():
            try:
                if isinstance(mark, torch.cuda.Event):
                    stream.wait_event(mark)
                for first in range(0, len(blocks), staging.pages):
                    some = slice(first, first + staging.pages)
                    indices = torch.tensor(blocks[some], dtype=torch.int64, device=self._device)
                    if out:
                        staging.gather(indices)
                    self._move(staging, pool, offsets[some], out)
                    if not out:
                        staging.scatter(indices)
            finally:
                # Also after an error: whatever was queued still runs, and nobody may count it as over.
                stream.synchronize()

    def _move(self, staging: Staging, pool: torch.Tensor, offsets: Sequence[int], out: bool) -> None:
        """Between the buffer and the pool: contiguous on both sides, so each piece is one cudaMemcpyAsync."""
        for page, offset in zip(staging.buffer, offsets, strict=False):
            for begin, end in pieces(offset, self.layout.page_bytes, PIN_BYTES):
                there, here = pool[offset + begin : offset + end], page[begin:end]
                (there if out else here).copy_(here if out else there, non_blocking=True)

    def pin(self, memory: memoryview, start: int, length: int) -> None:
        assert start % PIN_BYTES == 0 and length <= PIN_BYTES, (start, length)
        address = _bytes_of(memory).data_ptr() + start
        with torch.cuda.device(self._device), uncaptured():
            host_register(address, length, not memory.readonly)
        self._pinned.append(address)

    def unpin(self) -> None:
        with torch.cuda.device(self._device), uncaptured():
            while self._pinned:
                host_unregister(self._pinned.pop())


def _bytes_of(memory: memoryview) -> torch.Tensor:
    """The pool as a tensor of bytes; the caller's bracket keeps it mapped."""
    if memory.readonly:  # mode=read: only loads come here. torch warns of such buffers, so it gets the place alone.
        place = int(np.frombuffer(memory, np.uint8).ctypes.data)
        return torch.frombuffer((ctypes.c_ubyte * memory.nbytes).from_address(place), dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8)
