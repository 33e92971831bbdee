"""The sides of one start: each is started by itself, held while another one is asked, and ended when it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from children import Children
from engines.load import NotHeld, busy
from engines.rows import OURS, PLAIN
from engines.side import Side, SideFailed
from private_venv import Missing
from stack import Stack

from deployment.http import HttpFailure

from .asked import Late
from .lmcache_store import lmcache_store
from .mooncake_store import mooncake_store
from .offloading_store import offloading_store
from .pegaflow_store import pegaflow_store
from .store import Store

LMCACHE, MOONCAKE, OFFLOADING = "lmcache", "mooncake", "offloading"
SIDES: Final = (PLAIN, OURS, LMCACHE, MOONCAKE, OFFLOADING)
FLAGS: Final = ("--num-gpu-blocks-override", "300")
"""Of 32 ids: two prompts of 4,096 ids and the load without hits fit in, and four engines into the memory of a small machine."""
LATE: Final = 3
"""Who has not yet saved what comes again so often in a row has not been late for once."""


class Ended(Exception):
    """Without ours or plain vLLM there is nothing to compare any more; says which, and why."""


class Alive:
    """A context manager. `about`: what the stores are; `missing`: why a side is not or no longer there; both outlive it."""

    def __init__(self, folder: Path, pool_bytes: int, about: dict[str, str], missing: dict[str, str]) -> None:
        self._folder, self._pool_bytes, self._about, self._missing = folder, pool_bytes, about, missing
        self._sides: dict[str, Side] = {}
        self._ends: dict[str, ExitStack] = {}
        self._late: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with ExitStack() as all_of_them:
            for end in self._ends.values():
                all_of_them.push(end)

    @property
    def names(self) -> list[str]:
        return list(self._sides)

    def start(self, names: Sequence[str]) -> None:
        """One after the other; each is held once it is ready. Raises Ended for ours or plain vLLM."""
        for name in names:
            print(f"  start {name}", file=sys.stderr, flush=True)
            with ExitStack() as end:
                try:
                    store = self._store(name, end)
                    side = end.enter_context(Side(name, self._folder, store, flags=FLAGS))
                    side.wait_ready()
                except (Missing, SideFailed, HttpFailure) as why:
                    self._failed(name, str(why))
                    continue
                if store is not None:
                    self._about[name] = store.about
                side.hold()
                self._sides[name], self._ends[name] = side, end.pop_all()

    def turn(
        self,
        name: str,
        ask: Callable[[Side], None],
        spoiled: Callable[[], None] = lambda: None,
        dropped: Callable[[], None] = lambda: None,
    ) -> bool:
        """Only `name` runs while it is asked; nothing when it has failed before. Who fails is ended: `name`, or who ran though it
        was held, and then what `name` has shown is `spoiled`. Raises Ended when that is ours or plain vLLM.

        When its store is Late, what it has shown is `dropped`; the third time in a row it is ended. Whether it was late, and is
        still there.
        """
        if name not in self._sides:
            return False
        side = self._sides[name]
        late = ""
        try:
            with busy(side, [other for other in self._sides.values() if other is not side]):
                try:
                    ask(side)
                except Late as why:  # caught in here, so that it is held again
                    late = str(why)
        except NotHeld as why:
            spoiled()
            self._end({other: f"used {seconds:.3f} s of CPU while it was held" for other, seconds in why.used.items()})
        except (SideFailed, HttpFailure) as why:
            self._end({name: str(why)})
        except (OSError, ValueError, LookupError) as why:  # what a side answers or counts is not what it should be
            self._end({name: f"{type(why).__name__}: {why}"})
        self._late[name] = self._late.get(name, 0) + 1 if late else 0
        if late:
            print(f"  {late}", file=sys.stderr, flush=True)
            dropped()
            if self._late[name] >= LATE and name in self._sides:
                self._end({name: f"{LATE} times in a row: {late}"})
        return bool(late) and name in self._sides

    def _end(self, failed: Mapping[str, str]) -> None:
        """All of them, before the first one that the rest depends on is told."""
        for name in failed:
            del self._sides[name]
            self._ends.pop(name).close()
        self._missing.update({name: why.partition("\n")[0] for name, why in failed.items()})
        for name, why in failed.items():
            self._failed(name, why)

    def _failed(self, name: str, why: str) -> None:
        self._missing[name] = why.partition("\n")[0]
        if name in (PLAIN, OURS):
            raise Ended(f"{name}: {why}")
        print(f"  {name} is left out: {why}", file=sys.stderr, flush=True)

    def _store(self, name: str, end: ExitStack) -> Store | None:
        match name:
            case "plain":
                return None
            case "pegaflow":
                return pegaflow_store(end.enter_context(Stack("a", self._pool_bytes, mover=True)))
            case "lmcache":
                return lmcache_store(end.enter_context(Children()), self._pool_bytes, self._folder)
            case "mooncake":
                return mooncake_store(end.enter_context(Children()), self._pool_bytes)
            case _:
                return offloading_store(self._pool_bytes)
