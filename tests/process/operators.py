"""An operator who has nothing but the tool and the documents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOOL = Path(sys.executable).with_name("pegaflow")
NOBODY = "nobody listens there: the process is not running"
STOPPED = "somebody listens there and says nothing: the process is stopped, or hangs"


class Answer(NamedTuple):
    """What the tool said: exit code, rows and what is wrong of its JSON, and stderr."""

    code: int
    rows: list[dict[str, Any]]
    wrong: list[dict[str, Any]]
    talk: str

    def about(self, node: str) -> str:
        """What is wrong with a node or engine, in words."""
        return "; ".join(str(one["text"]) for one in self.wrong if one["node"] == node)

    def row(self, node: str) -> dict[str, Any]:
        """The only one of this node."""
        (found,) = (row for row in self.rows if row["node"] == node)
        return found


class Operator:
    """Types a command. Only those that both the failure table and `pegaflow --help` name. `environment`: where to look."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._known = (DOCS / "troubleshooting.md").read_text()
        self._help = subprocess.run([TOOL, "--help"], capture_output=True, text=True, check=True).stdout

    def __call__(self, line: str) -> Answer:
        words = line.split()
        name = " ".join(words[:2]) if words[0] in ("node", "page", "check", "catalogue", "engine") else words[0]
        assert f"pegaflow {name}" in self._known and f"\n  {words[0]} " in self._help, f"who should know of {name}?"
        ended = subprocess.run([TOOL, *words, "-o", "json"], env=self._environment, capture_output=True, text=True)
        assert ended.returncode in (0, 1) and "Traceback" not in ended.stderr, ended.stderr
        told = json.loads(ended.stdout)
        return Answer(ended.returncode, told["rows"], told["wrong"], ended.stderr)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
