"""Columns → descriptors: what is copied is exactly what was asked, and nothing outside the pools ever gets through."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numpy", reason="the mover process needs numpy")

from pegaflow.services.tier.mover.descriptors import BadDescriptor, Descriptors, Region, build

HERE, THERE = Region(0x10000, 4096), Region(0x900000, 2048)
TOP = (1 << 64) - 1


def made(local: list[int], remote: list[int], lengths: list[int]) -> Descriptors:
    return build(HERE, THERE, array("Q", local).tobytes(), array("Q", remote).tobytes(), array("I", lengths).tobytes())


def test_pages_that_touch_on_both_sides_are_joined() -> None:
    got = made([100, 0, 200, 300], [1100, 1000, 1200, 0], [100, 100, 100, 50])
    assert got.local.tolist() == [[HERE.base, 300, 0], [HERE.base + 300, 50, 0]]
    assert got.remote.tolist() == [[THERE.base + 1000, 300, 0], [THERE.base, 50, 0]]
    assert (got.pages, got.bytes) == (4, 350)


def test_one_source_may_go_to_two_places() -> None:
    assert made([0, 100], [0, 0], [100, 100]).remote.tolist() == [[THERE.base, 100, 0]] * 2


@pytest.mark.parametrize(
    ("local", "remote", "lengths"),
    [
        ([], [], []),
        ([0], [0], [0]),
        ([0, 1], [0], [1]),
        ([0], [0, 1], [1]),
        ([0], [0], [1, 1]),
        ([4096], [0], [1]),
        ([4095], [0], [2]),
        ([0], [2048], [1]),
        ([0], [2047], [2]),
        ([0], [0], [2049]),
        ([TOP], [0], [1]),
        ([0], [TOP], [1]),
        ([TOP - 4], [0], [100]),
        ([0, 99], [0, 200], [100, 100]),
        ([99, 0], [0, 200], [100, 100]),
        ([0, 0], [0, 0], [1, 1]),
    ],
)
def test_what_does_not_fit_is_refused(local: list[int], remote: list[int], lengths: list[int]) -> None:
    with pytest.raises(BadDescriptor):
        made(local, remote, lengths)


def test_a_torn_column_is_refused() -> None:
    with pytest.raises(BadDescriptor):
        build(HERE, THERE, bytes(9), bytes(9), bytes(4))


PAGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 4200), st.integers(TOP - 3000, TOP)),
        st.one_of(st.integers(0, 2100), st.integers(TOP - 3000, TOP)),
        st.one_of(st.integers(0, 300), st.integers((1 << 32) - 50, (1 << 32) - 1)),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(PAGES)
def test_exactly_the_asked_bytes_or_nothing(pages: list[tuple[int, int, int]]) -> None:
    wanted = [(at + i, there + i) for at, there, length in pages for i in range(min(length, 5000))]
    places = [at for at, _ in wanted]
    fits = all(length > 0 and at + length <= HERE.size and there + length <= THERE.size for at, there, length in pages) and len(
        set(places)
    ) == len(places)
    try:
        got = made(*(list(column) for column in zip(*pages, strict=True)))
    except BadDescriptor:
        assert not fits
        return
    assert fits
    copied = [
        (at + i - HERE.base, there + i - THERE.base)
        for (at, length, _), (there, same, _) in zip(got.local.tolist(), got.remote.tolist(), strict=True)
        for i in range(length)
        if length == same
    ]
    assert sorted(copied) == sorted(wanted)
