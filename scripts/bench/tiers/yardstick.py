"""What `dd`, and `fio` where it is installed, make of the disk: pages of one size, in order, into a new file set aside before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tiers.figures import Span


class Yardstick:
    """A context manager: a source of `pages` random pages in memory, and a file on disk. `direct`: past the kernel's cache."""

    def __init__(self, folder: Path, pages: int, page_bytes: int) -> None:
        self.pages, self.page_bytes = pages, page_bytes
        self._file = folder / "yardstick"
        self.direct = True

    def __enter__(self) -> Yardstick:
        size = self.pages * self.page_bytes
        self._memory = Path(tempfile.mkdtemp(prefix="pfy-", dir="/dev/shm"))
        self._source = self._memory / "source"
        with open(self._source, "wb") as out:
            while out.tell() < size:
                out.write(os.urandom(min(16 << 20, size - out.tell())))
        self._set_aside()
        self.direct = self._takes_direct()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shutil.rmtree(self._memory, ignore_errors=True)
        self._file.unlink(missing_ok=True)

    def _set_aside(self) -> None:
        """A new file, as the tier makes one for each segment: blocks that were never written cost more the first time."""
        self._file.unlink(missing_ok=True)
        with open(self._file, "wb") as out:
            os.posix_fallocate(out.fileno(), 0, self.pages * self.page_bytes)

    def _takes_direct(self) -> bool:
        return subprocess.run(self._dd(self._source, self._file, "oflag=direct", "count=1"), capture_output=True).returncode == 0

    def _dd(self, source: Path, target: Path, *more: str) -> list[str]:
        # Without O_DIRECT the tier drops what it wrote from the cache; `nocache` does the same.
        return ["dd", f"if={source}", f"of={target}", f"bs={self.page_bytes}", "conv=notrunc", "status=none", *more]

    def write(self) -> Span:
        self._set_aside()
        flag = "oflag=direct" if self.direct else "oflag=nocache"
        return self._timed(self._dd(self._source, self._file, flag, f"count={self.pages}"))

    def read(self) -> Span:
        flag = "iflag=direct" if self.direct else "iflag=nocache"
        return self._timed(self._dd(self._file, Path("/dev/null"), flag, f"count={self.pages}"))

    def _timed(self, command: list[str]) -> Span:
        begin = time.monotonic()
        subprocess.run(command, check=True)
        return Span(begin, time.monotonic(), self.pages)

    def fio(self, what: str) -> Span:
        """`what`: read or write; as fio times it, one job, one page at a time."""
        if what == "write":
            self._set_aside()
        command = [
            "fio",
            "--name=pages",
            f"--filename={self._file}",
            f"--rw={what}",
            f"--bs={self.page_bytes}",
            "--ioengine=psync",
        ]
        command += [f"--size={self.pages * self.page_bytes}", f"--direct={int(self.direct)}", "--output-format=json"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return Span(0.0, json.loads(said)["jobs"][0][what]["runtime"] / 1e3, self.pages)

    @staticmethod
    def has_fio() -> bool:
        return shutil.which("fio") is not None
