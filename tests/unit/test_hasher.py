"""Checksums on several threads: those of one, page by page, in the pages' order; one part that fails fails its job."""

from __future__ import annotations

import asyncio
import random

import pytest
import xxhash
from pegaflow.common import faults
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.hasher import INLINE_BYTES, PART_BYTES, Hasher, parts

MIB = 1 << 20


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("lengths", [[MIB] * 64, [1], [32 * MIB], [3 * MIB, 1, 9 * MIB, 5], [64 << 10] * 1024, [PART_BYTES] * 3])
def test_parts_cover_every_page_once_and_are_alike(threads: int, lengths: list[int]) -> None:
    found = list(parts(lengths, threads))
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(len(lengths)))
    assert 1 <= len(found) <= threads
    sizes = [sum(lengths[part]) for part in found]
    assert all(size >= PART_BYTES for size in sizes[:-1])
    assert max(sizes) <= max(PART_BYTES, sum(lengths) / threads) + max(lengths)


async def _hash(hasher: Hasher, slots: list[int], lengths: list[int]) -> list[bytes] | None:
    answer: asyncio.Future[list[bytes] | None] = asyncio.get_running_loop().create_future()
    hasher.hash(slots, lengths, answer.set_result)
    assert not answer.done()
    return await answer


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_every_page_has_its_own_checksum(threads: int) -> None:
    draw = random.Random(5)
    memory = bytearray(draw.randbytes(24 * MIB))
    slots = draw.sample(range(len(memory) // GRANULE), 200)
    room = [(len(memory) - slot * GRANULE) for slot in slots]
    lengths = [min(draw.randint(1, 256 << 10), most) for most in room]
    wanted = [xxhash.xxh3_128_digest(memory[slot * GRANULE :][:length]) for slot, length in zip(slots, lengths, strict=True)]

    async def all_of_them() -> None:
        hasher = Hasher(memoryview(memory), asyncio.get_running_loop(), threads)
        try:
            few = next(n for n in range(1, 200) if sum(lengths[: n + 1]) > INLINE_BYTES)
            answers = await asyncio.gather(_hash(hasher, slots, lengths), _hash(hasher, slots[:few], lengths[:few]))
            assert list(answers) == [wanted, wanted[:few]]
        finally:
            hasher.close()

    asyncio.run(all_of_them())


def test_a_part_that_fails_fails_its_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both() -> None:
        hasher = Hasher(memoryview(bytearray(16 * MIB)), asyncio.get_running_loop(), 2)
        good = ([0, 4 * MIB // GRANULE], [4 * MIB, 4 * MIB])
        try:
            monkeypatch.setattr(faults, "reach", _raise_once())
            assert await _hash(hasher, *good) is None
            assert await _hash(hasher, *good) == [xxhash.xxh3_128_digest(bytes(4 * MIB))] * 2
        finally:
            hasher.close()

    asyncio.run(both())


def _raise_once() -> object:
    left = [RuntimeError("injected")]

    def reach(point: object) -> None:
        if left:
            raise left.pop()

    return reach
