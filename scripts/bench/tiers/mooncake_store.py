"""A client of Mooncake Store on its fastest way: batches straight from and into registered memory, over TCP on loopback.

Runs in Mooncake's own environment, without pegaflow.
"""

from __future__ import annotations

from typing import Any

from tiers.batch import Batch


class MooncakeStore:
    """A provider brings `segment` bytes and asks for nothing; the others bring none, so that all bytes cross processes."""

    def __init__(self, master: str, own: str, segment: int, source: Batch, target: Batch) -> None:
        from mooncake.store import MooncakeDistributedStore

        store: Any = MooncakeDistributedStore()
        if store.setup(own, "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", master):
            raise SystemExit("mooncake refuses the set-up")
        for batch in (source, target):
            if store.register_buffer(batch.at, len(batch.memory)):
                raise SystemExit("mooncake does not register memory")
        self._store, self._source, self._target = store, source, target

    def put(self, keys: list[bytes]) -> None:
        size = self._source.page_bytes
        names = [key.hex() for key in keys]
        pointers = [self._source.at + place * size for place in range(len(keys))]
        failed = [code for code in self._store.batch_put_from(names, pointers, [size] * len(keys)) if code]
        if failed:
            raise SystemExit(f"mooncake did not take {len(failed)} of {len(keys)} pages: {failed[0]}")

    def get(self, keys: list[bytes]) -> int:
        size = self._target.page_bytes
        names = [key.hex() for key in keys]
        pointers = [self._target.at + place * size for place in range(len(keys))]
        failed = [code for code in self._store.batch_get_into(names, pointers, [size] * len(keys)) if code != size]
        if failed:
            raise SystemExit(f"mooncake did not return {len(failed)} of {len(keys)} pages: {failed[0]}")
        return 0

    def forget(self, keys: list[bytes]) -> None:
        """Makes room at once; else what has been read stays for seconds."""
        self._store.batch_remove([key.hex() for key in keys], True)
