"""KV caches as vLLM lays them out on a GPU, filled with bytes that tell every place from every other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Caches = Mapping[str, torch.Tensor]


def _filled(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device=device)
    flat = tensor.view(torch.uint8).flatten()
    flat.copy_(torch.randint(0, 256, (flat.numel(),), dtype=torch.uint8, device=device))
    return tensor


def llama(blocks: int, device: torch.device) -> Caches:
    """32 layers with storages of their own, keys and values apart: 16 tokens, 8 heads of 128, bfloat16. Pages of 2 MiB."""
    return {f"layers.{i}": _filled((2, blocks, 16, 8, 128), torch.bfloat16, device) for i in range(32)}


def packed(blocks: int, device: torch.device) -> Caches:
    """32 layers in one storage, block by block: the same sizes, one region."""
    whole = _filled((32, blocks, 2, 16, 8, 128), torch.bfloat16, device)
    return {f"layers.{i}": whole[i] for i in range(32)}


def sparse_mla(blocks: int, device: torch.device) -> Caches:
    """78 layers of 656 bytes a token and 21 indexers of 132, 64 tokens a block: pages of 3,452,160 bytes."""
    layers = {f"layers.{i}.attn": _filled((blocks, 64, 656), torch.uint8, device) for i in range(78)}
    return layers | {f"layers.{i}.indexer": _filled((blocks, 64, 132), torch.uint8, device) for i in range(21)}


KINDS: dict[str, tuple[int, Callable[[int, torch.device], Caches]]] = {
    "llama, 32 storages": (16, llama),
    "llama, one storage": (16, packed),
    "sparse MLA with indexer": (64, sparse_mla),
}
"""Name → tokens of a block, maker."""


def block_bytes(caches: Caches, block: int) -> bytes:
    """What a page of this block has to be: layer after layer, read the plain way, by another road than the copier's."""
    parts = []
    for tensor in caches.values():
        own = tensor[:, block] if tensor.dim() == 5 and tensor.shape[0] == 2 else tensor[block]
        parts.append(own.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return b"".join(parts)
