"""A process that runs in slices stands where it was seen."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deployment.supervision import wait_for
from failures.standstill import Standstill, stands

COUNTS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
    count = 0
    while True:
        count += 1
        memory[:] = count.to_bytes(8, "little")
"""


class Counting(NamedTuple):
    """A child that counts as fast as it can."""

    child: subprocess.Popen[bytes]
    memory: mmap.mmap

    def reached(self) -> int:
        return int.from_bytes(self.memory[:8], "little")

    def stands(self) -> bool:
        """A signal is sent before it is felt."""
        return stands(self.child.pid)


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    path = tmp_path / "count"
    path.write_bytes(bytes(8))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        child = subprocess.Popen([sys.executable, "-c", COUNTS, str(path)])
        made = Counting(child, memory)
        try:
            assert wait_for(lambda: made.reached() > 0, 30)
            yield made
        finally:
            child.kill()
            child.wait()


def test_it_stands_where_it_was_seen_and_goes_on(counting: Counting) -> None:
    process = Standstill(counting.child.pid)
    process.stop()
    assert wait_for(counting.stands, 30)
    goal = counting.reached() + 1000
    assert process.until(lambda: counting.reached() >= goal, 30, slice_seconds=0.005)
    assert wait_for(counting.stands, 30)
    seen = counting.reached()
    time.sleep(0.05)
    assert counting.reached() == seen
    process.go()
    assert wait_for(lambda: counting.reached() > seen, 30)
    process.go()


def test_unsliced_it_does_not_move(counting: Counting) -> None:
    process = Standstill(counting.child.pid)
    process.stop()
    assert wait_for(counting.stands, 30)
    seen = counting.reached()
    assert not process.until(lambda: counting.reached() > seen, 0.1)
    process.go()


def test_one_that_has_ended_is_said_when_stopped_and_not_when_released(counting: Counting) -> None:
    process = Standstill(counting.child.pid)
    process.stop()
    counting.child.kill()
    counting.child.wait()
    process.go()
    with pytest.raises(ProcessLookupError):
        process.until(lambda: False, 1, slice_seconds=0.005)
