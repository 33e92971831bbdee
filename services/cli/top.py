"""`pegaflow top`: what tiers do, live: hits by level, pages and bytes a second, pool, queues, latencies.

Each frame shows what happened since the one before; the first takes one interval. HIT is the share of the pages asked for by
lookups, MEM, REMOTE and DISK where they came from; LOOKUP is the mean time of a lookup, waits included; STATUS how long the
look took.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli import output, target
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing, Output, Wrong
from pegaflow.services.cli.output import HOME_AND_CLEAR, pause
from pegaflow.services.cli.ping import positive, shown_ms
from pegaflow.services.cli.rates import rates, standing
from pegaflow.services.cli.table import size

NAME = "top"
HELP = "live: hits, throughput, pool, queues, latencies"
EVERY_S = 1.0


class Sample(NamedTuple):
    """One tier's own word at `at` (monotonic seconds), answered after `took_s`."""

    told: Mapping[str, Any]
    epoch: int
    at: float
    took_s: float


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target.add_options(parser)
    output.add_output(parser)
    parser.add_argument("-n", "--frames", type=positive, metavar="N", help="end after N frames (default: when stopped)")
    parser.add_argument("--every", type=pause, default=EVERY_S, metavar="TIME", help="between frames (default: 1s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: in the last frame every tier answered. 1: one did not."""
    try:
        return asyncio.run(_frames(args))
    except KeyboardInterrupt:
        return 0


async def _frames(args: argparse.Namespace) -> int:
    at, form = target.choose(args), Output(args.output)
    people = form in (Output.TABLE, Output.WIDE)
    before: dict[str, Sample] = {}
    shown = code = 0
    first = True
    while args.frames is None or shown < args.frames:
        begun = time.monotonic()
        found, wrong = await _sampled(at)
        if not first or not found:
            listing = Listing(COLUMNS, [row(peer, before.get(peer.node), sample) for peer, sample in found], wrong)
            if people and shown:
                sys.stdout.write(HOME_AND_CLEAR if sys.stdout.isatty() else "\n")
            sys.stdout.write(listing.render(form, people and output.colourful(sys.stdout)))
            sys.stdout.flush()
            for one in wrong:
                print(one.line(), file=sys.stderr)
            shown, code = shown + 1, 1 if wrong else 0
        first = False
        before = {peer.node: sample for peer, sample in found if sample is not None}
        if args.frames is None or shown < args.frames:
            await asyncio.sleep(max(0.0, begun + args.every - time.monotonic()))
    return code


async def _sampled(at: target.Target) -> tuple[list[tuple[Peer, Sample | None]], list[Wrong]]:
    async with Cluster(at) as cluster:
        samples = await asyncio.gather(*(_sample(cluster, peer) for peer in cluster.tiers))
        found = sorted(zip(cluster.tiers, samples, strict=True), key=lambda pair: pair[0].node)
        return found, list(cluster.wrong)


async def _sample(cluster: Cluster, peer: Peer) -> Sample | None:
    begun = time.monotonic()
    answer = await cluster.ask(peer, Status(), Document)
    if answer is None:
        return None
    now = time.monotonic()
    try:
        return Sample(document_of(answer), answer.epoch, (begun + now) / 2, now - begun)
    except PegaflowError as error:
        cluster.wrong.append(Wrong("tier", peer.node, peer.endpoint, error.code, error.text))
        return None


def row(peer: Peer, before: Sample | None, after: Sample | None) -> dict[str, Any]:
    """Rates only within one life: a tier that was restarted counts from zero."""
    named = {"node": peer.node, "endpoint": peer.endpoint}
    if after is None:
        return named | {"state": "no answer"}
    took = {"status_ms": round(after.took_s * 1e3, 3)}
    if before is None or before.epoch != after.epoch:
        return named | standing(after.told) | took
    return named | rates(before.told, after.told, after.at - before.at) | took


def _percent(value: Any) -> str:
    return f"{100 * value:.0f}%" if isinstance(value, int | float) else "-"


def _speed(value: Any) -> str:
    return "-" if value is None else f"{size(value)}/s"


def _well(state: Any) -> Tone:
    return {"ready": Tone.GOOD, "draining": Tone.DOUBT, "starting": Tone.DOUBT}.get(str(state), Tone.BAD)


COLUMNS = (
    Column("NODE", "node"),
    Column("STATE", "state", tone=_well),
    Column("HIT", "hit", _percent),
    Column("MEM", "hit_memory", _percent),
    Column("REMOTE", "hit_remote", _percent),
    Column("DISK", "hit_disk", _percent),
    Column("LOOKUPS/S", "lookups_per_s"),
    Column("LOADED/S", "loaded_pages_per_s"),
    Column("SAVED/S", "saved_pages_per_s"),
    Column("EVICTED/S", "evicted_pages_per_s"),
    Column("MOVED", "moved_bytes_per_s", _speed),
    Column("POOL", "pool_used", _percent),
    Column("LOOKUPS", "lookups_open"),
    Column("FETCHES", "fetches_open"),
    Column("GRANTS", "grants_open", wide=True),
    Column("LEASES", "leases_open", wide=True),
    Column("HASHING", "hashing", wide=True),
    Column("LOOKUP", "lookup_ms", shown_ms),
    Column("STATUS", "status_ms", shown_ms),
    Column("ENDPOINT", "endpoint", wide=True),
)
