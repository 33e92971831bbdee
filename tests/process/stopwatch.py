"""How long things took, for people: PEGAFLOW_TIMES names a file, which gets a line of JSON for each. No test depends on it."""

from __future__ import annotations

import json
import os
import time
from types import TracebackType


class Stopwatch:
    """A context manager around what is timed; written down only if that ends well. `restart` begins anew."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.restart()

    def restart(self) -> None:
        self._began = time.monotonic()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        file = os.environ.get("PEGAFLOW_TIMES")
        if kind is None and file:
            with open(file, "a", encoding="utf-8") as out:
                out.write(json.dumps({"what": self._what, "seconds": round(time.monotonic() - self._began, 3)}) + "\n")
