"""Does the connector's GPU copier keep CUDA's rules on this machine, and how fast is it beside plain copies?

pinned       the pool, a shared file mapping, is pinned piece by piece, and given back
bytes        store and fetch on their own streams: every page is its block's bytes, no other block changes, pages across seams too
order        a copy starts behind the step's event, however slow the step is; without the event it would not (the control)
both ways    saves and loads at once, from two threads
capture      pinning and copying in other threads while a graph is captured
speed        GB/s of both directions beside a plain cudaMemcpyAsync of as many bytes
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pegaflow.common.pool import GRANULE
from pegaflow.connector.copier import PIN_BYTES
from pegaflow.connector.copy import make_copier

from gpu.caches import KINDS, Caches, block_bytes

EX_UNAVAILABLE = 69
SLOW_CYCLES = 400_000_000
"""About 0.2 s of a kernel that does nothing."""


class Failed(Exception):
    """A check does not hold."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


class Mapping:
    """A shared file mapping, as the tier's pool is one, with all of its memory there."""

    def __init__(self, folder: Path, size: int) -> None:
        with open(folder / "pool", "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED)
        self._map.madvise(mmap.MADV_DONTFORK)
        self.memory = memoryview(self._map)

    def close(self) -> None:
        self.memory.release()
        self._map.close()


class Bench:
    """A copier for one kind of cache, and the pool beside it."""

    def __init__(self, kind: str, view: Mapping, blocks: int, device: torch.device) -> None:
        tokens, make = KINDS[kind]
        self.view, self.blocks = view, blocks
        self.caches: Caches = make(blocks, device)
        self.copier: Any = make_copier(self.caches, blocks, tokens)
        self.page = self.copier.layout.page_bytes
        self.stride = -(-self.page // GRANULE) * GRANULE

    def offsets(self, count: int, start: int = 0) -> list[int]:
        return [start + i * self.stride for i in range(count)]


def pin_all(copier: Any, view: Mapping) -> float:
    """Seconds."""
    start = time.perf_counter()
    for at in range(0, len(view.memory), PIN_BYTES):
        copier.pin(view.memory, at, min(PIN_BYTES, len(view.memory) - at))
    return time.perf_counter() - start


def pinned(view: Mapping, device: torch.device) -> dict[str, Any]:
    """Registers and gives back; in between torch has to see the memory as pinned."""
    bench = Bench("llama, one storage", view, 2, device)
    seconds = pin_all(bench.copier, view)
    pool = torch.frombuffer(view.memory, dtype=torch.uint8)
    places = [0, PIN_BYTES - 1, len(view.memory) - 1]
    demand(all(pool[place : place + 1].is_pinned() for place in places), "the pool is not pinned after it was registered")
    bench.copier.unpin()
    demand(not any(pool[place : place + 1].is_pinned() for place in places), "the pool is still pinned after it was given back")
    again = pin_all(bench.copier, view)
    bench.copier.unpin()
    return {"pin_s_per_gib": seconds / (len(view.memory) / (1 << 30)), "again_s": again}


def copied(bench: Bench) -> dict[str, Any]:
    """Byte for byte, in a shuffled order, with one page across a seam of the pinned pieces."""
    copier, memory = bench.copier, bench.view.memory
    count = bench.blocks // 3
    blocks = torch.randperm(bench.blocks)[:count].tolist()
    # The last one begins below a seam, behind the others, and ends above it.
    seam = (bench.stride * count // PIN_BYTES + 1) * PIN_BYTES
    offsets = [*bench.offsets(count - 1), seam - bench.page // 2 // GRANULE * GRANULE]
    copier.store(memory, blocks, offsets, copier.mark())
    for block, offset in zip(blocks, offsets, strict=True):
        demand(
            bytes(memory[offset : offset + bench.page]) == block_bytes(bench.caches, block), f"the page of block {block} differs"
        )
    others = sorted(set(range(bench.blocks)) - set(blocks))
    targets, kept = others[:count], others[count:]
    wanted = [block_bytes(bench.caches, block) for block in blocks]
    before = {block: block_bytes(bench.caches, block) for block in [*blocks, *kept]}
    copier.fetch(memory, targets, offsets[: len(targets)], copier.mark())
    for target, page in zip(targets, wanted, strict=False):
        demand(block_bytes(bench.caches, target) == page, f"block {target} is not the page that it was loaded from")
    for block, page in before.items():
        demand(block_bytes(bench.caches, block) == page, f"block {block} changed, and nothing was loaded into it")
    return {"pages": count, "page_bytes": bench.page}


def ordered(bench: Bench) -> dict[str, Any]:
    """A step of 0.2 s that writes a block's rows last: the save has to wait for it, and a load must not overtake its reads."""
    copier, memory = bench.copier, bench.view.memory
    tensor = next(iter(bench.caches.values()))
    old = block_bytes(bench.caches, 0)

    def slow_step(fill: int) -> None:
        torch.cuda._sleep(SLOW_CYCLES)
        for layer in bench.caches.values():
            layer.view(torch.uint8).fill_(fill)

    early = copier.mark()
    torch.cuda.synchronize()
    slow_step(1)
    copier.store(memory, [0], [0], early)
    control = bytes(memory[: bench.page]) == old
    demand(control, "the control failed: a copy without the step's event did not overtake the step, so this check shows nothing")
    torch.cuda.synchronize()
    slow_step(2)
    start = time.perf_counter()
    copier.store(memory, [0], [0], copier.mark())
    waited = time.perf_counter() - start
    demand(bytes(memory[: bench.page]) == b"\2" * bench.page, "a save read the block before the step had written it")
    # And a load: what the step before still reads must be what was there.
    memory[: bench.page] = b"\3" * bench.page
    torch.cuda._sleep(SLOW_CYCLES)
    seen = tensor.clone()
    copier.fetch(memory, [0], [0], copier.mark())
    demand(bool((seen.view(torch.uint8) == 2).all()), "a load overtook a read of the step before")
    demand(block_bytes(bench.caches, 0) == b"\3" * bench.page, "a load did not arrive")
    return {"waited_s": waited}


def both_ways(bench: Bench) -> dict[str, Any]:
    """A thread that saves blocks of the lower half, one that loads into the upper half, many times."""
    copier, memory = bench.copier, bench.view.memory
    half = bench.blocks // 2
    sources = bench.offsets(half)
    copier.store(memory, list(range(half)), sources, copier.mark())
    wanted = [block_bytes(bench.caches, block) for block in range(half)]
    errors: list[BaseException] = []

    def saves() -> None:
        for _ in range(20):
            copier.store(memory, list(range(half)), bench.offsets(half, half * bench.stride), copier.mark())

    def loads() -> None:
        for _ in range(20):
            copier.fetch(memory, list(range(half, 2 * half)), sources, copier.mark())

    run_threads([saves, loads], errors)
    for i, page in enumerate(wanted):
        offset = (half + i) * bench.stride
        demand(bytes(memory[offset : offset + bench.page]) == page, "a page saved while others were loaded differs")
        demand(block_bytes(bench.caches, half + i) == page, "a block loaded while others were saved differs")
    return {"rounds": 20}


def run_threads(jobs: list[Callable[[], None]], errors: list[BaseException]) -> None:
    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def captured(bench: Bench) -> dict[str, Any]:
    """vLLM captures graphs while the pool is still being pinned: neither may break the other."""
    copier, memory = bench.copier, bench.view.memory
    copier.unpin()
    errors: list[BaseException] = []
    inside, done = threading.Event(), threading.Event()
    torch.cuda.synchronize()
    tensor = torch.zeros(1024, device=bench.copier._device)
    marks = [copier.mark()]

    def disturb() -> None:
        inside.wait()
        try:
            pin_all(copier, bench.view)
            copier.store(memory, [1, 2], bench.offsets(2), marks[0])
        finally:
            done.set()

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor.add_(1)
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                tensor.add_(1)
                inside.set()
                done.wait()
                tensor.add_(1)
        graph.replay()
        torch.cuda.synchronize()

    run_threads([disturb, capture], errors)
    demand(float(tensor[0]) == 3.0, f"the captured graph gave {float(tensor[0])} instead of 3")
    demand(bytes(memory[: bench.page]) == block_bytes(bench.caches, 1), "a page saved during a capture differs")
    return {}


def speed(bench: Bench) -> dict[str, Any]:
    """GB/s; plain: one contiguous buffer of the device and the pinned pool, the same bytes."""
    copier, memory = bench.copier, bench.view.memory
    count = min(bench.blocks, len(memory) // bench.stride, max(1, (256 << 20) // bench.page))
    blocks, offsets = torch.randperm(bench.blocks)[:count].tolist(), bench.offsets(count)
    size = count * bench.page
    pool = torch.frombuffer(memory, dtype=torch.uint8)
    device = torch.empty(min(size, PIN_BYTES), dtype=torch.uint8, device=copier._device)

    def plain(out: bool) -> None:
        for at in range(0, size, device.numel()):
            here = device[: min(device.numel(), size - at)]
            there = pool[at : at + here.numel()]
            (there if out else here).copy_(here if out else there, non_blocking=True)
        torch.cuda.synchronize()

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return size / min(times) / 1e9

    return {
        "pages": count,
        "save_gb_s": best(lambda: copier.store(memory, blocks, offsets, copier.mark())),
        "plain_d2h_gb_s": best(lambda: plain(True)),
        "load_gb_s": best(lambda: copier.fetch(memory, blocks, offsets, copier.mark())),
        "plain_h2d_gb_s": best(lambda: plain(False)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=int, default=1, help="size of the pool")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from report import Goal, at_least, show

    if not torch.cuda.is_available():
        print(f"no_device: torch {torch.__version__} sees no CUDA device here, so there is nothing to check", file=sys.stderr)
        return EX_UNAVAILABLE
    device = torch.device("cuda", torch.cuda.current_device())
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []

    def check(name: str, kind: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            found = run()
            row = {"check": name, "cache": kind, "holds": "yes", **found}
        except Failed as failed:
            row = {"check": name, "cache": kind, "holds": f"NO: {failed}"}
        except Exception as error:  # of CUDA: the other checks may still tell something
            row = {"check": name, "cache": kind, "holds": f"NO: {type(error).__name__}: {error}"}
        rows.append(row)
        return row

    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="pfg-", dir=base) as folder:
        view = Mapping(Path(folder), arguments.gib << 30)
        check("pinned", "", lambda: pinned(view, device))
        for kind in KINDS:
            bench = Bench(kind, view, 64, device)
            check("pin", kind, lambda bench=bench: {"seconds": pin_all(bench.copier, view)})  # type: ignore[misc]
            check("bytes", kind, lambda bench=bench: copied(bench))  # type: ignore[misc]
            check("both ways", kind, lambda bench=bench: both_ways(bench))  # type: ignore[misc]
            measured = check("speed", kind, lambda bench=bench: speed(bench))  # type: ignore[misc]
            for ours, plain in (("save_gb_s", "plain_d2h_gb_s"), ("load_gb_s", "plain_h2d_gb_s")):
                if ours in measured:
                    goals.append(at_least(f"{ours} / {plain}, {kind}", measured[ours] / measured[plain], 0.7))
            check("order", kind, lambda bench=bench: ordered(bench))  # type: ignore[misc]
            check("capture", kind, lambda bench=bench: captured(bench))  # type: ignore[misc]
            check("unpin", kind, lambda bench=bench: bench.copier.unpin() or {})  # type: ignore[misc]
            del bench
            torch.cuda.empty_cache()
        with suppress(BufferError):  # an error that is still around holds a view of it; the process ends anyway
            view.close()
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    show([rows], goals, arguments.json)
    return 0 if all(row["holds"] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
