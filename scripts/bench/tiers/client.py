"""A client of a store, in a process of its own, told what to do by lines on stdin (helper.py is the other end).

    python -m tiers.client PAGES PAGE_BYTES pegaflow NAME RUNTIME_DIR | mooncake MASTER OWN SEGMENT       ready ▶ stdout
    {"do": "prepare", "seed": 7, "count": 64}   the batch that is meant from now on; not timed
    {"do": "put"}, {"do": "get"}, {"do": "copy"}    ▶ {"begin": s, "end": s} of the machine's monotonic clock
    {"do": "check"}                             ends the process unless what was got is what was put, byte for byte

Mooncake's runs in an environment without pegaflow.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from tiers.batch import Batch, batch_keys


class Store(Protocol):
    """Page i of a batch belongs to key i. Calls return when all of it is done, and end the process where some of it is not."""

    def put(self, keys: list[bytes]) -> None: ...

    def get(self, keys: list[bytes]) -> int:
        """How many of the pages came from disk."""
        ...

    def forget(self, keys: list[bytes]) -> None:
        """These pages need not be kept any longer."""
        ...


def store_of(kind: str, where: list[str], source: Batch, target: Batch) -> Store:
    if kind == "pegaflow":
        from tiers.pegaflow_store import PegaflowStore

        return PegaflowStore(where[0], where[1], source, target)
    from tiers.mooncake_store import MooncakeStore

    return MooncakeStore(where[0], where[1], int(where[2]), source, target)


def timed(call: Callable[[], Any]) -> dict[str, Any]:
    begin = time.monotonic()
    found = call()
    return {"begin": begin, "end": time.monotonic(), "from_disk": found or 0}


def main() -> None:
    pages, page_bytes, kind, *where = sys.argv[1:]
    source, target = Batch(int(pages), int(page_bytes)), Batch(int(pages), int(page_bytes))
    source.fill()
    store = store_of(kind, where, source, target)
    keys: list[bytes] = []
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        match order["do"]:
            case "prepare":
                keys = batch_keys(order["seed"], order["count"])
                source.stamp(keys)
                target.clear()
            case "put":
                answer = timed(lambda: store.put(keys))  # noqa: B023 (called at once)
            case "get":
                answer = timed(lambda: store.get(keys))  # noqa: B023
            case "copy":
                answer = timed(lambda: target.copy(source, len(keys)))  # noqa: B023
            case "check":
                if wrong := target.differ(source, len(keys)):
                    raise SystemExit(f"{wrong} of {len(keys)} pages have other bytes than were put")
            case "forget":
                store.forget(keys)
            case other:
                raise SystemExit(f"what is {other}?")
        print("answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
