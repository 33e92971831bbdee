"""How fast the bus is: lookups from another process, intents per second, and how soon a sealed page can be seen elsewhere.

    scripts/bench/control [--repeats 400] [--json FILE]

lookup      750 keys (12k tokens at 16 a block), all sealed, idle tier: from the call of `SchedulerBus.lookup` to the answer in
            the caller's hands, and the bare request/reply of the same message for comparison
intents     one key each, all known to the tier, until the last one is acknowledged
visible     `written` at node a ▶ sealed ▶ delta ▶ a lookup that waits at node b has the page's bytes (fetched over NIXL), and the
            part of it until node b's tier knows the owner
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from pegaflow.common import clock
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages import catalogue, loads
from report import Goal, at_most, percentile, show
from stack import Engine, Stack, keys, until

PAGE_BYTES = GRANULE
LOOKUP_KEYS = 750
INTENTS = 5_000


def save(engine: Engine, wanted: list[bytes]) -> None:
    count = len(wanted)
    ref = engine.scheduler.publish_intent(wanted, [16] * count, [0] * count, ["bench"] * count, 0)
    grant = engine.rank.take_grant(ref, clock.now() + 10) if ref is not None else None
    if grant is None:
        raise SystemExit("no grant")
    engine.rank.written(grant, list(grant.positions))


def lookups(engine: Engine, wanted: list[bytes], repeats: int) -> list[float]:
    """Milliseconds, through the connector's bus."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        answer = engine.lookup(wanted)
        times.append((time.perf_counter() - start) * 1e3)
        if answer.full != len(wanted) or answer.lease is None:
            raise SystemExit(f"{answer.full} of {len(wanted)} keys found")
        engine.scheduler.release(answer.lease)
        time.sleep(0.002)  # idle is what is measured; the release must be over
    return times


def bare_lookups(stack: Stack, engine: Engine, wanted: list[bytes], repeats: int) -> list[float]:
    """Milliseconds, request and reply only, from a loop that does nothing else."""
    attached = engine.scheduler._attached
    if attached is None:
        raise SystemExit("not attached")

    async def run() -> list[float]:
        factory = SocketFactory()
        client = RpcClient(factory, asyncio.get_running_loop(), stack.endpoint("a"))
        times = []
        for i in range(repeats):
            # Numbers far from the scheduler's own; `alive` does not list them, so each is asked and released at once.
            ask = loads.Lookup(attached.session, attached.token, (1 << 40) + i, "bench", wanted, [], 2000, False)
            start = time.perf_counter()
            hits = await client.request(ask, 5.0)
            times.append((time.perf_counter() - start) * 1e3)
            await client.request(loads.Release(attached.session, attached.token, u64s([hits.lease])), 5.0)
        client.close()
        factory.close()
        return times

    return asyncio.run(run())


def intents(engine: Engine, wanted: list[bytes]) -> float:
    """Intents per second, the window's back-pressure included."""
    start = time.perf_counter()
    sent = 0
    while sent < INTENTS:
        key = wanted[sent % len(wanted)]
        if engine.scheduler.publish_intent([key], [16], [0], ["bench"], 0) is None:
            time.sleep(0.0002)
            continue
        sent += 1
    until("every intent is acknowledged", lambda: len(engine.scheduler._window) == 0)
    return INTENTS / (time.perf_counter() - start)


def visible(stack: Stack, p: Engine, d: Engine, repeats: int) -> tuple[list[float], list[float]]:
    """Milliseconds until a waiting `locate` at the metaserver is answered, and until a waiting lookup at b has the page."""
    located: list[float] = []
    loaded: list[float] = []
    endpoint = stack.metaserver
    for _ in range(repeats):
        wanted = keys(1)
        ref = p.scheduler.publish_intent(wanted, [16], [0], ["bench"], 0)
        grant = p.rank.take_grant(ref, clock.now() + 10) if ref is not None else None
        if grant is None:
            raise SystemExit("no grant")
        located.append(_locate_time(endpoint, p, grant, wanted))
        wanted = keys(1)
        ref = p.scheduler.publish_intent(wanted, [16], [0], ["bench"], 0)
        grant = p.rank.take_grant(ref, clock.now() + 10) if ref is not None else None
        if grant is None or not d.scheduler.lookup(1 << 41, "bench", wanted, [], 10.0, True):
            raise SystemExit("no grant")
        until("node b waits", lambda: stack.dump("b")["lookups"] == 1)
        start = time.perf_counter()
        p.rank.written(grant, list(grant.positions))
        while not (answers := d.scheduler.drain()):
            time.sleep(0.00005)
        loaded.append((time.perf_counter() - start) * 1e3)
        if answers[0].full != 1 or answers[0].lease is None:
            raise SystemExit(f"node b did not get the page: {answers[0].code}")
        d.scheduler.release(answers[0].lease)
    return located, loaded


def _locate_time(endpoint: str, p: Engine, grant: Any, wanted: list[bytes]) -> float:
    async def run() -> float:
        factory = SocketFactory()
        client = RpcClient(factory, asyncio.get_running_loop(), endpoint)
        waiting = asyncio.ensure_future(client.request(catalogue.Locate("bench", wanted, 5000, True), 6.0))
        await client.request(catalogue.Nodes(), 5.0)  # the same socket keeps order: the locate waits there by now
        start = time.perf_counter()
        p.rank.written(grant, list(grant.positions))
        answer = await waiting
        took = (time.perf_counter() - start) * 1e3
        client.close()
        factory.close()
        if answer.states[0] != catalogue.SEALED:
            raise SystemExit("the metaserver did not see the page")
        return took

    return asyncio.run(run())


def row(what: str, values: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "p50_ms": percentile(values, 0.5),
        "p90_ms": percentile(values, 0.9),
        "p99_ms": percentile(values, 0.99),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    with Stack("ab", 256 << 20, mover=True) as stack:
        p, d = Engine(stack, "a", PAGE_BYTES, "p"), Engine(stack, "b", PAGE_BYTES, "d")
        wanted = keys(LOOKUP_KEYS)
        save(p, wanted)
        until("all pages are sealed", lambda: stack.dump("a")["pages"].get("sealed") == LOOKUP_KEYS)
        whole = lookups(p, wanted, arguments.repeats)
        bare = bare_lookups(stack, p, wanted, arguments.repeats)
        rows += [row(f"lookup of {LOOKUP_KEYS} keys, connector", whole), row(f"lookup of {LOOKUP_KEYS} keys, bare request", bare)]
        goals.append(at_most(f"lookup of {LOOKUP_KEYS} keys from another process, p50 ms", percentile(bare, 0.5), 0.4))
        rate = intents(p, wanted)
        rows.append({"what": "intents of one key", "per_s": rate})
        located, loaded = visible(stack, p, d, max(20, arguments.repeats // 8))
        rows += [row("written -> visible at the metaserver", located), row("written -> page at the other tier", loaded)]
        goals.append(at_most("sealed -> visible at the other tier, p50 ms", percentile(loaded, 0.5), 3.0))
        p.close()
        d.close()
    show(rows, goals, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
