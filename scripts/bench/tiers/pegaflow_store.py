"""A client of a tier, with everything that a rank inside vLLM has except vLLM: both buses, the mapped pool, the same copies.

put   intent ▶ grant ▶ copy into the granted slots, `written` per chunk ▶ checksum, sealed (a lookup that waits for it)
get   lookup (what is not here is fetched from its node, or read from disk) ▶ generations, copy out, generations ▶ release
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pegaflow.common import clock
from pegaflow.common.pool import GRANULE
from pegaflow.connector.session import Grant, LookupAnswer
from pegaflow.connector.worker import CHUNK_BYTES
from stack import Engine, options

from tiers.batch import Batch

GRANT_S = 20.0
ROWS = 16
FROM_DISK = 2
"""In `LookupAnswer.sources`."""


class PegaflowStore:
    """One engine of one rank, attached to the tier of a runtime directory. Ends the process where a page is not served."""

    def __init__(self, name: str, runtime_dir: str, source: Batch, target: Batch) -> None:
        self._engine = Engine(options(Path(runtime_dir)), source.page_bytes, name)
        self._page_bytes = source.page_bytes
        self._chunk = max(1, CHUNK_BYTES // source.page_bytes)
        self._source = np.frombuffer(source.memory, np.uint8).reshape(source.pages, source.page_bytes)
        self._target = np.frombuffer(target.memory, np.uint8).reshape(target.pages, target.page_bytes)

    def put(self, keys: list[bytes]) -> None:
        """Page i of the source under key i. Returns when all are sealed."""
        grant = self._granted(keys)
        rank = self._engine.rank
        for first in range(0, len(keys), self._chunk):
            positions = list(grant.positions[first : first + self._chunk])
            view = rank.begin_copy(grant.ref.session)
            if view is None:
                raise SystemExit("the session ended")
            self._copy_in(view.memory, positions, grant.slots[first : first + self._chunk])
            rank.end_copy()
            rank.written(grant, positions)
        self._leased(keys)

    def get(self, keys: list[bytes]) -> int:
        """The page of key i into place i of the target; returns how many were read from disk."""
        answer = self._found(keys)
        assert answer.lease is not None
        scheduler, rank = self._engine.scheduler, self._engine.rank
        scheduler.loading(answer.lease)
        for first in range(0, len(keys), self._chunk):
            chunk = slice(first, first + self._chunk)
            view = rank.begin_copy(answer.lease.session)
            if view is None:
                raise SystemExit("the session ended")
            self._still(view, answer, chunk)
            self._copy_out(view.memory, first, answer.slots[chunk])
            self._still(view, answer, chunk)
            rank.end_copy()
        scheduler.release(answer.lease)
        return answer.sources.count(FROM_DISK)

    def _granted(self, keys: list[bytes]) -> Grant:
        count = len(keys)
        request = keys[0].hex()  # a save never evicts pages of its own request
        ref = self._engine.scheduler.publish_intent(keys, [ROWS] * count, [0] * count, [request] * count, 0)
        grant = self._engine.rank.take_grant(ref, clock.now() + GRANT_S) if ref is not None else None
        if grant is None or len(grant.positions) != count:
            granted = 0 if grant is None else len(grant.positions)
            raise SystemExit(f"the tier granted {granted} of {count} pages: the pool is too small for this run")
        return grant

    def _leased(self, keys: list[bytes]) -> None:
        lease = self._found(keys).lease
        assert lease is not None
        self._engine.scheduler.release(lease)

    def _found(self, keys: list[bytes]) -> LookupAnswer:
        answer = self._engine.lookup(keys, expected=True)
        if answer.full != len(keys) or answer.lease is None:
            raise SystemExit(f"only {answer.full} of {len(keys)} pages were found: {answer.code}")
        return answer

    # Views of the pool live in these calls only, so that it can be unmapped.

    def _copy_in(self, memory: memoryview, places: list[int], slots: Any) -> None:
        pool = np.frombuffer(memory, np.uint8)
        for place, slot in zip(places, slots, strict=True):
            np.copyto(pool[slot * GRANULE : slot * GRANULE + self._page_bytes], self._source[place])

    def _copy_out(self, memory: memoryview, first: int, slots: Any) -> None:
        pool = np.frombuffer(memory, np.uint8)
        for place, slot in enumerate(slots, first):
            np.copyto(self._target[place], pool[slot * GRANULE : slot * GRANULE + self._page_bytes])

    @staticmethod
    def _still(view: Any, answer: LookupAnswer, chunk: slice) -> None:
        if any(view.generation(slot) != was for slot, was in zip(answer.slots[chunk], answer.generations[chunk], strict=True)):
            raise SystemExit("a slot changed under its lease")

    def forget(self, keys: list[bytes]) -> None:
        """Nothing to do: the tier evicts what it needs room for."""
