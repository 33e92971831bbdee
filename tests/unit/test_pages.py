"""Page layout: sizes, offsets, digest."""

import pytest
from pegaflow.common.pages import PageLayout

LAYERS = [("a", 96, "float32[1,2,12]"), ("b", 32, "uint8[32]")]


def test_layers_lie_in_registered_order() -> None:
    layout = PageLayout.of(16, LAYERS)
    assert layout.page_bytes == 128
    assert [(layer.name, offset) for layer, offset in layout.offsets()] == [("a", 0), ("b", 96)]
    assert len(layout.digest) == 16


@pytest.mark.parametrize(
    "other",
    [
        PageLayout.of(32, LAYERS),
        PageLayout.of(16, LAYERS[::-1]),
        PageLayout.of(16, [LAYERS[0], ("b", 32, "int8[32]")]),
        PageLayout.of(16, [LAYERS[0], ("c", 32, "uint8[32]")]),
        PageLayout.of(16, LAYERS[:1]),
    ],
)
def test_any_difference_changes_the_digest(other: PageLayout) -> None:
    assert other.digest != PageLayout.of(16, LAYERS).digest


def test_an_impossible_layout_is_an_error() -> None:
    for block_size, layers in [(0, LAYERS), (16, []), (16, [LAYERS[0], LAYERS[0]]), (16, [("a", 0, "x")])]:
        with pytest.raises(ValueError):
            PageLayout.of(block_size, layers)


def test_layers_of_different_sizes_share_a_page() -> None:
    # GLM-5.2 at 64 tokens a block: sparse MLA in 78 layers, 21 of them with an indexer cache of their own.
    mla = [(f"model.layers.{i}.self_attn.attn", 64 * 656, "uint8[64,656]@0,1") for i in range(78)]
    indexer = [(f"model.layers.{i}.self_attn.indexer.k_cache", 64 * 132, "uint8[64,132]@0,1") for i in range(21)]
    layout = PageLayout.of(64, [*mla, *indexer])
    assert layout.page_bytes == 3_452_160
    offsets = {layer.name: offset for layer, offset in layout.offsets()}
    assert offsets["model.layers.1.self_attn.attn"] == 64 * 656
    assert offsets["model.layers.20.self_attn.indexer.k_cache"] == 3_452_160 - 64 * 132
    assert layout.digest != PageLayout.of(64, [*indexer, *mla]).digest
