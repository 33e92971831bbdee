"""Mooncake Store on loopback: its master, one provider with all the memory, and clients that bring none."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from catalogue_mooncake import PACKAGE, MooncakeMaster
from children import Children, free_port

from tiers.clients import Clients, command

SETTINGS: Final = {"MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_TCP_SLICE_SIZE": str(1 << 20)}
"""The fastest of those tried: without them a TCP connection per page, and pages in pieces of 64 KiB that wait for each other."""
BATCHES: Final = 4
"""Of memory that the provider brings; as many but one are put once before anything is measured, so that it is there."""
PAGE: Final = 1 << 20
TRIES: Final = 3

NOT_COMPARED: Final = {
    "get over the mover": "its reader's node has no memory of its own to fetch into; both of our gets stand beside its one",
    "seal": "it takes no checksum",
    "evict": "its master evicts in the background, and a put into a full segment fails meanwhile: no rate of puts",
    "disk": "its SSD offload follows heartbeats of the provider in the background; no call tells when a page is there",
}


class Mooncakes(NamedTuple):
    """`children`: of the run; they end with it."""

    children: Children
    master: MooncakeMaster

    @classmethod
    def start(cls, children: Children, batch: int, seeds: itertools.count[int]) -> Mooncakes:
        """`batch`: bytes that are put at a time. Raises Missing where Mooncake cannot be had."""
        store = cls(children, MooncakeMaster.run(children.spawn, free_port))
        store._process(children, 1, PAGE, BATCHES * batch)
        with Children() as mine:
            writer = store.clients(mine, batch // PAGE, PAGE)
            warm = [next(seeds) for _ in range(BATCHES - 1)]
            for call in (writer.put, writer.forget):
                for seed in warm:
                    writer.prepare([seed])
                    call()
        return store

    def clients(self, children: Children, pages: int, page_bytes: int) -> Clients:
        """One, which ends with these `children`."""
        return self._process(children, pages, page_bytes, 0)

    def _process(self, children: Children, pages: int, page_bytes: int, segment: int) -> Clients:
        for attempt in range(TRIES):
            where = [self.master.at, f"127.0.0.1:{free_port()}", str(segment)]
            try:
                one = command(self.master.python, pages, page_bytes, "mooncake", *where)
                return Clients([children.helper(one, SETTINGS)], pages)
            except SystemExit:  # on a busy machine one may fail to start
                if attempt == TRIES - 1:
                    raise
        raise AssertionError

    @staticmethod
    def row() -> dict[str, str]:
        """For the report: what was measured."""
        settings = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return {"peer": "mooncake", "as": f"{PACKAGE}: batch_put_from, batch_get_into, registered memory, tcp, {settings}"}
