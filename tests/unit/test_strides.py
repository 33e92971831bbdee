"""From the tensors that vLLM registers to the page layout and the copies."""

import pytest
from pegaflow.connector.options import StartRefused
from pegaflow.connector.strides import LayerTensor, Region, lay_out

BLOCKS = 10


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def layer(
    name: str,
    shape: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    storage: int = 1,
    dtype: str = "float32",
    size: int = 4,
) -> LayerTensor:
    return LayerTensor(name, storage, offset, size, dtype, shape, strides or contiguous(shape))


def test_layers_at_equal_distances_are_one_region() -> None:
    shape = (BLOCKS, 2, 32, 64)
    block = 2 * 32 * 64
    layout, regions = lay_out([layer(f"l{i}", shape, offset=i * BLOCKS * block) for i in range(4)], BLOCKS, 32)
    assert layout.page_bytes == 4 * block * 4
    assert [entry.form for entry in layout.layers] == ["float32[2,32,64]@0,1,2"] * 4
    assert regions == (Region(1, 0, block * 4, ((4, BLOCKS * block * 4),), block * 4),)


def test_keys_and_values_apart() -> None:
    layout, regions = lay_out([layer("l", (2, BLOCKS, 16, 8, 64), dtype="bfloat16", size=2)], BLOCKS, 16)
    run = 16 * 8 * 64 * 2
    assert regions == (Region(1, 0, run, ((2, BLOCKS * run),), run),)
    assert layout.page_bytes == 2 * run


def test_the_form_tells_the_order_in_memory_but_not_the_number_of_blocks() -> None:
    heads_first = layer("l", (BLOCKS, 4, 16, 8))
    tokens_first = layer("l", (BLOCKS, 4, 16, 8), strides=(512, 8, 32, 1))
    a, (region,) = lay_out([heads_first], BLOCKS, 16)
    b, _ = lay_out([tokens_first], BLOCKS, 16)
    assert a.layers[0].form == "float32[4,16,8]@0,1,2"
    assert b.layers[0].form == "float32[4,16,8]@1,0,2"
    assert a.digest != b.digest
    assert region.bytes == 2048
    more, _ = lay_out([layer("l", (2, BLOCKS * 5, 16, 8, 64))], BLOCKS * 5, 16)
    fewer, _ = lay_out([layer("l", (2, BLOCKS, 16, 8, 64))], BLOCKS, 16)
    assert more.digest == fewer.digest


def test_blocks_split_for_the_kernel() -> None:
    layout, (region,) = lay_out([layer("l", (BLOCKS * 4, 16, 8))], BLOCKS, 64)
    assert layout.page_bytes == 4 * 16 * 8 * 4
    assert region == Region(1, 0, 2048, (), 2048)


def test_layers_packed_inside_a_block() -> None:
    tensors = [layer(f"l{i}", (BLOCKS, 8, 4), strides=(96, 4, 1), offset=i * 32) for i in range(3)]
    _, regions = lay_out(tensors, BLOCKS, 8)
    assert regions == (Region(1, 0, 384, ((3, 128),), 128),)


def test_layers_of_different_size_and_storage() -> None:
    tensors = [
        layer("a", (BLOCKS, 64, 656), dtype="uint8", size=1, storage=1),
        layer("b", (BLOCKS, 64, 132), dtype="uint8", size=1, storage=2),
        layer("c", (BLOCKS, 64, 656), dtype="uint8", size=1, storage=3),
    ]
    layout, regions = lay_out(tensors, BLOCKS, 64)
    assert layout.page_bytes == 64 * (656 + 132 + 656)
    assert [region.storage for region in regions] == [1, 2, 3]


def test_a_layer_that_shares_anothers_memory_is_stored_once() -> None:
    layout, _ = lay_out([layer("a", (BLOCKS, 8, 4)), layer("shares a", (BLOCKS, 8, 4))], BLOCKS, 8)
    assert [entry.name for entry in layout.layers] == ["a"]


def test_a_layer_before_its_neighbour_is_a_region_of_its_own() -> None:
    _, regions = lay_out([layer("a", (BLOCKS, 8), offset=1000), layer("b", (BLOCKS, 8), offset=0)], BLOCKS, 8)
    assert [region.offset for region in regions] == [4000, 0]


def test_where_the_blocks_cannot_be_told_it_refuses() -> None:
    for shape in [(7, 3), (3, BLOCKS, BLOCKS)]:
        with pytest.raises(StartRefused, match="cannot be told"):
            lay_out([layer("l", shape)], BLOCKS, 16)
    with pytest.raises(StartRefused, match="no KV cache"):
        lay_out([], BLOCKS, 16)
