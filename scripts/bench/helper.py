"""A child of a benchmark that is told what to do by lines on stdin, so that loads run in processes of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Helper:
    """A child that answers one line of JSON per line of JSON."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: all of it; None: as this process's."""
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def ready(self) -> Helper:
        self._line("ready")
        return self

    def _line(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # libraries may print here too
            first, _, rest = line.rstrip("\n").partition(" ")
            if first == word:
                return rest
        said = self._log.read_text(errors="replace").splitlines()[-8:]
        raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}: " + "\n".join(said))

    def order(self, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line("answer"))
        return answer

    def do(self, **what: Any) -> dict[str, Any]:
        self.order(**what)
        return self.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # an order that it did not live to read
                pipe.close()
