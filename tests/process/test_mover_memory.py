"""A mover has in its page table what has memory, and gives nothing memory itself: that is the tier's to do, chunk by chunk."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from mover_node import QUICK, run, until
from pegaflow.services.tier.mover.pool import MoverPool

HALF = 16 << 20
WHOLE = 2 * HALF


def entered(pid: int, path: Path) -> int:
    """Bytes of the file that are in the process's page table."""
    text = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8")
    return sum(int(found) << 10 for found in re.findall(rf"{re.escape(str(path))}\n(?:(?!Rss).*\n)*Rss: +(\d+) kB", text))


@run
async def test_every_mover_enters_what_has_memory_and_not_more() -> None:
    with tempfile.TemporaryDirectory(prefix="pegaflow-test-mover-", dir="/dev/shm") as folder:
        path, announced = Path(folder, "pool"), list[bytes]()
        with open(path, "xb") as file:
            file.truncate(WHOLE)
            os.posix_fallocate(file.fileno(), 0, HALF)
            pool = MoverPool(
                Path(folder), "a", path, WHOLE, on_done=lambda *_: None, on_metadata=announced.append, ucx={}, limits=QUICK
            )
            try:
                await pool.start()
                pool.backed(HALF)
                await until(lambda: entered(pool.pids()[0], path) == HALF)
                assert path.stat().st_blocks * 512 == HALF
                os.posix_fallocate(file.fileno(), 0, WHOLE)
                pool.backed(WHOLE)
                await until(lambda: entered(pool.pids()[0], path) == WHOLE)
                pool.recycle()
                await until(lambda: len(announced) == 2)
                await until(lambda: entered(pool.pids()[0], path) == WHOLE)
            finally:
                await pool.stop()
