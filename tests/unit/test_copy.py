"""Blocks to pages and back, on a CPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
copy = pytest.importorskip("pegaflow.connector.copy")

BLOCKS = 6


def layouts() -> dict[str, dict[str, Any]]:
    one = torch.arange(3 * BLOCKS * 4 * 8, dtype=torch.float32)
    far = one.view(3, BLOCKS, 4, 8)
    near = torch.rand(BLOCKS, 3, 4, 8, dtype=torch.float32)
    split = torch.rand(2, BLOCKS, 4, 8)
    return {
        "layers far apart in one storage": {f"l{i}": far[i] for i in range(3)},
        "layers packed in a block": {f"l{i}": near[:, i] for i in range(3)},
        "keys and values apart": {"l": split},
        "own storages, sizes and dtypes": {
            "a": torch.rand(BLOCKS, 4, 8),
            "b": torch.rand(BLOCKS, 4, 3).to(torch.bfloat16),
            "c": torch.randint(0, 255, (BLOCKS, 7), dtype=torch.uint8),
        },
        "heads before tokens": {"l": torch.rand(BLOCKS, 4, 2, 8).transpose(1, 2)},
    }


@pytest.mark.parametrize("name", list(layouts()))
def test_there_and_back(name: str) -> None:
    caches = layouts()[name]
    copier = copy.make_copier(caches, BLOCKS, 4)
    page = copier.layout.page_bytes
    pool = bytearray(3 * page + 100)
    before = {layer: tensor.clone() for layer, tensor in caches.items()}
    copier.store(memoryview(pool), [4, 1], [100, 100 + 2 * page], copier.mark())
    for tensor in caches.values():
        tensor.zero_()
    copier.fetch(memoryview(pool), [2, 1], [100, 100 + 2 * page], copier.mark())
    for layer, tensor in caches.items():
        blocks = tensor.movedim(1, 0) if name == "keys and values apart" else tensor
        old = before[layer].movedim(1, 0) if name == "keys and values apart" else before[layer]
        assert torch.equal(blocks[2], old[4]), layer
        assert torch.equal(blocks[1], old[1]), layer
        assert not blocks[[0, 3, 4, 5]].any(), layer
    assert not any(pool[:100])
    assert not any(pool[100 + page : 100 + 2 * page])


def test_layers_of_one_storage_are_one_copy() -> None:
    caches = layouts()["layers far apart in one storage"]
    assert len(copy.make_copier(caches, BLOCKS, 4)._views) == 1


def test_a_page_holds_the_layers_in_registered_order() -> None:
    caches = {"z": torch.full((BLOCKS, 4), 1, dtype=torch.uint8), "a": torch.full((BLOCKS, 4), 2, dtype=torch.uint8)}
    copier = copy.make_copier(caches, BLOCKS, 4)
    pool = bytearray(8)
    copier.store(memoryview(pool), [0], [0], None)
    assert bytes(pool) == b"\1\1\1\1\2\2\2\2"


def test_sparse_mla_and_its_indexer_share_a_page() -> None:
    names = [f"layers.{i}.attn" for i in range(3)] + [f"layers.{i}.indexer" for i in range(2)]
    widths = [656, 656, 656, 132, 132]
    caches = {
        name: torch.randint(0, 255, (BLOCKS, 64, width), dtype=torch.uint8) for name, width in zip(names, widths, strict=True)
    }
    copier = copy.make_copier(caches, BLOCKS, 64)
    page = 64 * (3 * 656 + 2 * 132)
    assert copier.layout.page_bytes == page
    pool = bytearray(2 * page)
    copier.store(memoryview(pool), [5, 2], [page, 0], None)
    assert bytes(pool[:page]) == b"".join(caches[name][2].numpy().tobytes() for name in names)
    kept = {name: tensor.clone() for name, tensor in caches.items()}
    for tensor in caches.values():
        tensor.zero_()
    copier.fetch(memoryview(pool), [0, 1], [0, page], None)
    for name, tensor in caches.items():
        assert torch.equal(tensor[0], kept[name][2]) and torch.equal(tensor[1], kept[name][5]), name
        assert not tensor[2:].any(), name


@pytest.mark.parametrize("name", list(layouts()))
def test_a_page_is_its_blocks_bytes_layer_by_layer(name: str) -> None:
    """Whatever lies between them in memory, a page has the rows of a block in order of memory, and nothing else."""
    caches = layouts()[name]
    copier = copy.make_copier(caches, BLOCKS, 4)
    pool = bytearray(copier.layout.page_bytes)
    copier.store(memoryview(pool), [3], [0], None)
    parts = []
    for tensor in caches.values():
        block = tensor.movedim(1, 0)[3] if name == "keys and values apart" else tensor[3]
        order = sorted(range(block.dim()), key=lambda dim: -block.stride(dim))
        parts.append(block.permute(order).contiguous().view(torch.uint8).numpy().tobytes())
    assert bytes(pool) == b"".join(parts)
