"""scripts/gpu_check where there is no device: it says so, and the checks that need none can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
check = pytest.importorskip("gpu.check")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_it_says_so() -> None:
    run = subprocess.run(
        [ROOT / "scripts/gpu_check"], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 69
    assert run.stderr.startswith("no_device: torch ")


@pytest.fixture
def mapping(tmp_path: Path) -> Any:
    made = check.Mapping(tmp_path, 160 << 20)
    yield made
    made.close()


@pytest.mark.parametrize("kind", list(check.KINDS))
def test_the_checks_of_bytes_hold_for_a_copier_that_is_right(kind: str, mapping: Any) -> None:
    bench = check.Bench(kind, mapping, 6, torch.device("cpu"))
    check.copied(bench)
    check.both_ways(bench)


def test_a_page_of_a_layer_too_few_is_noticed(mapping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = check.Bench("llama, 32 storages", mapping, 6, torch.device("cpu"))
    monkeypatch.setattr(bench.copier, "_views", bench.copier._views[:-1])
    monkeypatch.setattr(bench.copier, "_places", bench.copier._places[:-1])
    with pytest.raises(check.Failed, match="differs"):
        check.copied(bench)


def test_a_load_into_another_block_is_noticed(mapping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = check.Bench("sparse MLA with indexer", mapping, 6, torch.device("cpu"))
    fetch = bench.copier.fetch

    def careless(memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        fetch(memory, blocks, offsets, mark)
        others = [block for block in range(6) if block not in blocks][:2]
        fetch(memory, others, [offsets[0], offsets[0]], mark)  # one of the two at least is not where that page came from

    monkeypatch.setattr(bench.copier, "fetch", careless)
    with pytest.raises(check.Failed, match="changed, and nothing was loaded into it"):
        check.copied(bench)
