"""How fast the bus is: lookups from another process, intents per second, and how soon a sealed page can be seen elsewhere.

    scripts/bench/control [--repeats 400] [--json FILE]

lookup      750 keys (12k tokens at 16 a block), all sealed, idle tier: through the connector's bus (two threads, an event loop),
            and from a plain blocking client, beside an echo of as many bytes
intents     one key each, all known to the tier, until the last one is acknowledged
visible     `written` at node a ▶ sealed ▶ delta ▶ metaserver ▶ pin ▶ READ ▶ verified: until lookups that wait at a and at b are
            answered; the difference is what a page needs from one tier to the other
curve       round trips over TCP to one process, in plain and encrypted, in turns: a ping, a lookup, a chunk of a snapshot

Exit codes: 0 all goals are met, 3 one is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from curve import curve_rows
from pegaflow.common import clock
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.messages import loads
from report import Goal, at_most, ended, percentile, show
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


def plain_lookups(stack: Stack, engine: Engine, wanted: list[bytes], repeats: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the same lookup from a plain blocking DEALER, and of an echo of as many bytes by a ROUTER that only echoes.

    In turns, so that a slow second of the machine hits both.
    """
    attached = engine.scheduler._attached
    if attached is None:
        raise SystemExit("not attached")
    context = multiprocessing.get_context("spawn")
    echo_at = f"ipc://{stack.folder}/echo.sock"
    echo = context.Process(target=_echo, args=(echo_at, 12 * len(wanted)), daemon=True)
    echo.start()
    factory = SocketFactory()
    tier, mirror = factory.dealer(stack.endpoint("a")), factory.dealer(echo_at)
    times: list[float] = []
    echoes: list[float] = []
    for i in range(repeats):
        # Numbers far above the scheduler's own: its `alive` says nothing about them.
        ask = loads.Lookup(attached.session, attached.token, (1 << 40) + i, "bench", wanted, [], 2000, False)
        start = time.perf_counter()
        tier.send_multipart(encode(ask, RequestHeader(2 * i + 1, 5000, 0)))
        hits = open_envelope(tier.recv_multipart(), ReplyHeader).message()
        times.append((time.perf_counter() - start) * 1e3)
        if hits.full != len(wanted):
            raise SystemExit(f"{hits.full} of {len(wanted)} keys found")
        release = loads.Release(attached.session, attached.token, u64s([hits.lease]))
        tier.send_multipart(encode(release, RequestHeader(2 * i + 2, 5000, 0)))
        tier.recv_multipart()
        frames = encode(ask, RequestHeader(i, 5000, 0))
        start = time.perf_counter()
        mirror.send_multipart(frames)
        mirror.recv_multipart()
        echoes.append((time.perf_counter() - start) * 1e3)
    factory.close()
    echo.kill()
    echo.join()
    return times, echoes


def _echo(endpoint: str, reply_bytes: int) -> None:
    sock, _ = SocketFactory().router(endpoint)
    reply = bytes(reply_bytes)
    while True:
        sock.send_multipart([sock.recv_multipart()[0], reply])


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
    until("every intent is acknowledged", lambda: len(engine.scheduler._outbox.window) == 0)
    return INTENTS / (time.perf_counter() - start)


def visible(stack: Stack, p: Engine, d: Engine, repeats: int) -> dict[str, list[float]]:
    """Milliseconds from `written` at node a until a lookup that waits there is answered (sealed), until one at node b is (the
    page's bytes are there, verified), and between the two."""
    found: dict[str, list[float]] = {"sealed": [], "elsewhere": [], "between": []}
    for i in range(repeats):
        wanted = keys(1)
        ref = p.scheduler.publish_intent(wanted, [16], [0], ["bench"], 0)
        grant = p.rank.take_grant(ref, clock.now() + 10) if ref is not None else None
        if grant is None:
            raise SystemExit("no grant")
        for engine in (p, d):
            engine.scheduler.lookup((1 << 41) + i, "bench", wanted, [], 10.0, True)
        until("both wait", lambda: all(stack.dump(node)["lookups"] == 1 for node in "ab"))
        times: dict[str, float] = {}
        start = time.perf_counter()
        p.rank.written(grant, list(grant.positions))
        while len(times) < 2:
            for name, engine in (("sealed", p), ("elsewhere", d)):
                for answer in engine.scheduler.drain():
                    times[name] = (time.perf_counter() - start) * 1e3
                    if answer.full != 1 or answer.lease is None:
                        raise SystemExit(f"the page was not found: {answer.code}")
                    engine.scheduler.release(answer.lease)
            time.sleep(0.00002)
        found["sealed"].append(times["sealed"])
        found["elsewhere"].append(times["elsewhere"])
        found["between"].append(times["elsewhere"] - times["sealed"])
    return found


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
        p, d = Engine(stack.options("a"), PAGE_BYTES, "p"), Engine(stack.options("b"), PAGE_BYTES, "d")
        wanted = keys(LOOKUP_KEYS)
        save(p, wanted)
        until("all pages are sealed", lambda: stack.dump("a")["pages"].get("sealed") == LOOKUP_KEYS)
        whole = lookups(p, wanted, arguments.repeats)
        plain, echoes = plain_lookups(stack, p, wanted, arguments.repeats)
        rows.append(row(f"lookup of {LOOKUP_KEYS} keys, through the connector's bus", whole))
        rows.append(row(f"lookup of {LOOKUP_KEYS} keys, plain blocking client", plain))
        rows.append(row("echo of as many bytes, same client", echoes))
        ratio = statistics.median(a / b for a, b in zip(plain, echoes, strict=True))
        rows.append({"what": "lookup / echo, pair by pair", "ratio": ratio})
        goals.append(at_most(f"lookup of {LOOKUP_KEYS} keys from another process, p50 ms", percentile(plain, 0.5), 0.4))
        rows.append({"what": "intents of one key", "per_s": intents(p, wanted)})
        found = visible(stack, p, d, max(40, arguments.repeats // 4))
        rows.append(row("written -> sealed, at the own tier", found["sealed"]))
        rows.append(row("written -> page at the other tier", found["elsewhere"]))
        rows.append(row("sealed -> page at the other tier", found["between"]))
        goals.append(at_most("sealed -> visible at the other tier, p50 ms", percentile(found["between"], 0.5), 3.0))
        p.close()
        d.close()
    show([rows, curve_rows(arguments.repeats)], goals, arguments.json)
    return ended(goals)


if __name__ == "__main__":
    sys.exit(main())
