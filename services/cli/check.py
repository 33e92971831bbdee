"""`pegaflow check`: one thing against two thresholds, for monitoring: 0 ok, 1 warning, 2 critical, 3 unknown.

ping: the time to an answer; no answer is critical. latency: the 99th percentile of many answers. sync: by how many sealed pages a
metaserver and a tier differ; a metaserver that does not follow a tier at all is critical. capacity: the share of a tier's pool
that is leased or kept, from which no page may be evicted; that a pool is full is well.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pegaflow.common.config import duration
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli import output, target
from pegaflow.services.cli.access import BARRED
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.doctor.collect import lost
from pegaflow.services.cli.listing import Listing, Output
from pegaflow.services.cli.ping import rounds
from pegaflow.services.cli.table import span
from pegaflow.services.cli.target import UsageError
from pegaflow.services.cli.thresholds import Measure, State, judged, nagios, prometheus, worst

NAME = "check"
HELP = "one thing against thresholds, for monitoring"
FORMATS = ("text", "json", "nagios", "prometheus")
SAMPLES = 50

Measured = Callable[[Cluster], Awaitable[list[Measure]]]


class Kind(NamedTuple):
    """What one verb measures, in which unit, its thresholds where nobody says others, what a service without answer means."""

    text: str
    unit: str
    warn: str
    crit: str
    parse: Callable[[str], float]
    measure: Measured
    silent: State = State.CRITICAL


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.wrong_usage = int(State.UNKNOWN)  # 2 would mean critical to whoever runs this
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="CHECK")
    for verb, kind in KINDS.items():
        one = verbs.add_parser(verb, help=kind.text, description=kind.text)
        one.wrong_usage = parser.wrong_usage
        target.add_options(one)
        one.add_argument("-w", "--warn", default=kind.warn, metavar="LIMIT", help=f"from here on 1 (default: {kind.warn})")
        one.add_argument("-c", "--crit", default=kind.crit, metavar="LIMIT", help=f"from here on 2 (default: {kind.crit})")
        one.add_argument("--format", choices=FORMATS, default="text", help="for people (default), programs, or monitors")
        one.set_defaults(run=run, failed=int(State.UNKNOWN))


def run(args: argparse.Namespace) -> int:
    """The worst state of all that was measured."""
    kind = KINDS[args.verb]
    try:
        at = target.choose(args)
        warn, crit = (kind.parse(limit) for limit in (args.warn, args.crit))
        if warn > crit:
            raise UsageError(f"--warn {args.warn} is above --crit {args.crit}")
    except (UsageError, ValueError) as error:
        print(f"pegaflow check: {error}", file=sys.stderr)
        return State.UNKNOWN
    measures = [judged(one, warn, crit) for one in asyncio.run(_measured(at, kind))]
    state = worst(measures)
    match args.format:
        case "nagios":
            print(nagios(args.verb, kind.unit, measures, warn, crit))
        case "prometheus":
            print(prometheus(args.verb, kind.unit, measures), end="")
        case _:
            listing = Listing(COLUMNS, [row(one, kind.unit, warn, crit) for one in measures])
            form = Output.JSON if args.format == "json" else Output.TABLE
            print(listing.render(form, form is Output.TABLE and output.colourful(sys.stdout)), end="")
    return int(state)


async def _measured(at: target.Target, kind: Kind) -> list[Measure]:
    async with Cluster(at) as cluster:
        silent = [_without(one.service, one.node, one.code, f"{one.code}: {one.text}", kind.silent) for one in cluster.wrong]
        cluster.wrong.clear()
        silent += [Measure("tier", one.node, None, kind.silent, f"silent for {span(one.ago_ms)}") for one in await lost(cluster)]
        return [*silent, *await kind.measure(cluster)]


def _without(service: str, node: str, code: str, text: str, state: State) -> Measure:
    """There is no value. A service that does not let us in may be well: nothing can be said."""
    return Measure(service, node, None, State.UNKNOWN if code in BARRED else state, text)


async def _ping(cluster: Cluster) -> list[Measure]:
    return _timed(await rounds(cluster, 1, 1), "max_ms")


async def _latency(cluster: Cluster) -> list[Measure]:
    return _timed(await rounds(cluster, SAMPLES, 1), "p99_ms")


def _timed(listing: Listing, field: str) -> list[Measure]:
    found = []
    for one in listing.rows:
        service, node, state = str(one["service"]), str(one["node"]), str(one["state"])
        if state != "answers":
            found.append(_without(service, node, state, state, State.CRITICAL))
        else:
            found.append(Measure(service, node, one[field]))
    return found


async def _capacity(cluster: Cluster) -> list[Measure]:
    async def one(peer: Peer) -> Measure:
        try:
            told = document_of(await cluster.tell(peer, Status(), Document))
            space, pool = told.get("space"), told["pool_bytes"]
            kept = space.get("kept_bytes", 0) / pool if isinstance(space, dict) else 0.0
            return Measure("tier", peer.node, round(100 * kept + told["leased_permille"] / 10, 2))
        except (PegaflowError, KeyError, TypeError, ZeroDivisionError) as error:
            text = f"{error.code}: {error.text}" if isinstance(error, PegaflowError) else "its status says nothing of it"
            return Measure("tier", peer.node, None, State.UNKNOWN, text)

    return list(await asyncio.gather(*map(one, cluster.tiers)))


async def _sync(cluster: Cluster) -> list[Measure]:
    """Per metaserver and tier."""
    mine = dict(zip([peer.node for peer in cluster.tiers], await _statuses(cluster, cluster.tiers), strict=True))
    theirs = await _statuses(cluster, cluster.metaservers)
    found = []
    for metaserver, told in zip(cluster.metaservers, theirs, strict=True):
        if isinstance(told, PegaflowError):
            found.append(_without("metaserver", metaserver.node, told.code, f"no status: {told.code}", State.CRITICAL))
            continue
        rows = {str(one.get("node")): one for one in told.get("nodes", ()) if isinstance(one, dict)}
        for node in sorted({*rows, *mine}):
            found.append(_followed(metaserver.node, node, rows.get(node), mine.get(node)))
    return found


def _followed(
    metaserver: str, node: str, seen: Mapping[str, Any] | None, told: Mapping[str, Any] | PegaflowError | None
) -> Measure:
    name = f"{node}@{metaserver}"
    if seen is None:
        return Measure("tier", name, None, State.CRITICAL, "the metaserver does not know it")
    if seen.get("state") not in ("up", "draining"):
        return Measure("tier", name, None, State.CRITICAL, f"the metaserver has it as {seen.get('state')}")
    announced = told.get("announced") if isinstance(told, Mapping) else None
    if not isinstance(announced, dict):
        return Measure("tier", name, None, State.UNKNOWN, "the tier does not say what it has")
    return Measure("tier", name, abs(announced.get("sealed", 0) - seen.get("sealed", 0)))


async def _statuses(cluster: Cluster, peers: Sequence[Peer]) -> list[Mapping[str, Any] | PegaflowError]:
    async def one(peer: Peer) -> Mapping[str, Any] | PegaflowError:
        try:
            return document_of(await cluster.tell(peer, Status(), Document))
        except PegaflowError as error:
            return error

    return list(await asyncio.gather(*map(one, peers)))


def _milliseconds(text: str) -> float:
    return duration(text) * 1e3


def _per_cent(text: str) -> float:
    return float(text.removesuffix("%"))


KINDS = {
    "ping": Kind("the time to an answer", "ms", "100ms", "1s", _milliseconds, _ping),
    "sync": Kind("pages that a metaserver does not know of a tier", "", "1000", "100000", float, _sync),
    "capacity": Kind("the share of a pool that cannot be evicted", "%", "70%", "90%", _per_cent, _capacity, State.UNKNOWN),
    "latency": Kind("the 99th percentile of answers", "ms", "50ms", "500ms", _milliseconds, _latency),
}


def row(measure: Measure, unit: str, warn: float, crit: float) -> dict[str, Any]:
    named = {"service": measure.service, "node": measure.node, "state": measure.state.name.lower()}
    return named | {"value": measure.value, "unit": unit, "warn": warn, "crit": crit, "text": measure.text}


def _tone(state: Any) -> Tone:
    return {"ok": Tone.GOOD, "warning": Tone.DOUBT}.get(str(state), Tone.BAD)


COLUMNS = (
    Column("SERVICE", "service"),
    Column("NODE", "node"),
    Column("STATE", "state", tone=_tone),
    Column("VALUE", "value"),
    Column("UNIT", "unit"),
    Column("WARN", "warn"),
    Column("CRIT", "crit"),
    Column("WHY", "text"),
)
