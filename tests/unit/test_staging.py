"""Pages by way of a contiguous buffer, and the GPU copier around it with the device's calls replaced: no GPU is needed here.

What only a device can show (streams, events, pinning) is checked by scripts/gpu_check on a machine that has one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
copy = pytest.importorskip("pegaflow.connector.copy")
gpu_copier = pytest.importorskip("pegaflow.connector.gpu_copier")
staging = pytest.importorskip("pegaflow.connector.staging")

BLOCKS = 9


def layouts() -> dict[str, dict[str, Any]]:
    def byte(*shape: int) -> Any:
        return torch.randint(0, 255, shape, dtype=torch.uint8)

    far = byte(4, BLOCKS, 4, 16)
    return {
        "one storage": {f"l{i}": far[i] for i in range(4)},
        "own storages, keys and values apart": {f"l{i}": byte(2, BLOCKS, 4, 2, 8) for i in range(3)},
        "odd widths": {"a": byte(BLOCKS, 4, 33), "b": byte(BLOCKS, 4, 6), "c": byte(BLOCKS, 4, 12)},
        "sparse MLA and its indexer": {"a": byte(BLOCKS, 64, 656), "b": byte(BLOCKS, 64, 132)},
    }


class FakeStream:
    def __init__(self, *_: Any) -> None:
        self.waited: list[Any] = []
        self.synchronized = 0

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        self.synchronized += 1


class FakeEvent:
    def record(self, stream: Any) -> None:
        self.stream = stream


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "vllm's stream")
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(gpu_copier, "uncaptured", contextlib.nullcontext)
    monkeypatch.setattr(gpu_copier, "require_runtime", lambda: None)
    monkeypatch.setattr(gpu_copier, "PIN_BYTES", 1 << 12)


def copiers(caches: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """One for the CPU, and one for a GPU that takes two pages at a time."""
    cpu = copy.make_copier(caches, BLOCKS, 4)
    monkeypatch.setattr(gpu_copier, "STAGING_BYTES", 2 * cpu.layout.page_bytes)
    regions = [torch.from_numpy(view) for view in cpu._views]
    return cpu, gpu_copier.GpuCopier(cpu.layout, regions)


@pytest.mark.parametrize("name", list(layouts()))
def test_both_copiers_make_the_same_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = layouts()[name]
    cpu, gpu = copiers(caches, monkeypatch)
    page = cpu.layout.page_bytes
    offsets = [100 + i * page for i in (4, 0, 2, 3, 1)]
    wanted, found = bytearray(5 * page + 100), bytearray(5 * page + 100)
    cpu.store(memoryview(wanted), [8, 1, 0, 5, 2], offsets, None)
    gpu.store(memoryview(found), [8, 1, 0, 5, 2], offsets, gpu.mark())
    assert found == wanted
    before = {layer: tensor.clone() for layer, tensor in caches.items()}
    moved = [3, 4, 6, 7, 1]
    cpu.fetch(memoryview(wanted), moved, offsets, None)
    after = {layer: tensor.clone() for layer, tensor in caches.items()}
    for layer, tensor in caches.items():
        tensor.copy_(before[layer])
    gpu.fetch(memoryview(found), moved, offsets, gpu.mark())
    for layer, tensor in caches.items():
        assert torch.equal(tensor, after[layer]), layer


def test_a_pool_that_may_only_be_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = layouts()["one storage"]
    _, gpu = copiers(caches, monkeypatch)
    pool = bytes(range(256)) * 4
    gpu.fetch(memoryview(pool), [3], [0], None)
    assert torch.cat([caches[f"l{i}"][3].flatten() for i in range(4)]).numpy().tobytes() == pool[: gpu.layout.page_bytes]


def test_copies_wait_for_the_mark_on_their_own_stream_and_are_over_when_the_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    _, gpu = copiers(layouts()["one storage"], monkeypatch)
    mark = gpu.mark()
    assert mark.stream == "vllm's stream"
    gpu.store(memoryview(bytearray(4096)), [1], [0], mark)
    assert (gpu._out.waited, gpu._in.waited, gpu._out.synchronized) == ([mark], [], 1)
    with pytest.raises(IndexError):
        gpu.fetch(memoryview(bytearray(4096)), [BLOCKS], [0], mark)
    assert (gpu._in.waited, gpu._in.synchronized) == ([mark], 1), "also after an error"


def test_wide_elements_are_used_where_they_fit() -> None:
    made = staging.Staging([torch.zeros(3, 16, dtype=torch.uint8), torch.zeros(3, 12, dtype=torch.uint8)], 2)
    assert [region.dtype for region, _ in made._regions] == [torch.int32, torch.int32], "28 bytes a page"
    made = staging.Staging([torch.zeros(3, 16, dtype=torch.uint8), torch.zeros(3, 24, dtype=torch.uint8)], 2)
    assert [region.dtype for region, _ in made._regions] == [torch.int64, torch.int64]
    made = staging.Staging([torch.zeros(3, 5, dtype=torch.uint8)], 2)
    assert made._regions[0][0].dtype == torch.uint8


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 10, [(0, 10)]),
        (60, 4, [(0, 4)]),
        (60, 10, [(0, 4), (4, 10)]),
        (64, 64, [(0, 64)]),
        (63, 130, [(0, 1), (1, 65), (65, 129), (129, 130)]),
    ],
)
def test_pieces_end_at_seams(offset: int, length: int, expected: list[tuple[int, int]]) -> None:
    assert list(staging.pieces(offset, length, 64)) == expected


def test_pinned_pieces_are_all_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, gpu = copiers(layouts()["one storage"], monkeypatch)
    held: dict[int, tuple[int, bool]] = {}
    monkeypatch.setattr(gpu_copier, "host_register", lambda at, length, writable: held.update({at: (length, writable)}))
    monkeypatch.setattr(gpu_copier, "host_unregister", held.pop)
    pool = memoryview(bytearray(3 << 12))
    for start in range(0, 3 << 12, 1 << 12):
        gpu.pin(pool, start, 1 << 12)
    first = torch.frombuffer(pool, dtype=torch.uint8).data_ptr()
    assert held == {first + start: (1 << 12, True) for start in range(0, 3 << 12, 1 << 12)}
    gpu.pin(memoryview(bytes(1 << 12)), 0, 1 << 12)
    assert list(held.values())[-1] == (1 << 12, False)
    gpu.unpin()
    assert held == {}
