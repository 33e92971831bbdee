"""`pegaflow why`: why was this a miss? By the request's id, as the engine's log names it, or by the prompt's tokens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pegaflow.common.wire.messages import inspection
from pegaflow.services.cli import prompt
from pegaflow.services.cli.cluster import Cluster, add_options, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.evidence import evidence, same_content
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.namespaces import SHORT, Namespace, differing, namespaces
from pegaflow.services.cli.prompt import Block
from pegaflow.services.cli.sight import Copy, copies
from pegaflow.services.cli.table import ago, span
from pegaflow.services.cli.target import UsageError
from pegaflow.services.cli.verdict import Cause, Other, Verdict, verdict

NAME = "why"
HELP = "why a request missed: never saved, evicted, other fingerprint, pending, owner dead"
MAX_SHOWN = 16
"""Lookups of one request, or whose id begins so, that are explained; the latest."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    parser.add_argument("request", nargs="?", metavar="REQUEST_ID", help="the request's id, or its beginning")
    prompt.add_options(parser, required=False)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: it is explained. 1: nothing is remembered of the request, or somebody did not answer."""
    by_tokens = args.tokens is not None or args.text is not None
    if (args.request is None) != by_tokens:
        raise UsageError("say a REQUEST_ID, or --tokens FILE, or --text STRING")
    if not by_tokens:
        return listed(args, lambda cluster: _of_request(cluster, args.request))
    token_ids = prompt.ids(args)
    return listed(args, lambda cluster: _of_tokens(cluster, args, token_ids))


# --- by request ------------------------------------------------------------------------------------------------------


async def _of_request(cluster: Cluster, request: str) -> Listing:
    answers = await cluster.ask_each(cluster.tiers, inspection.Recall(request), inspection.Recalled)
    rows = [row for peer, answer in answers for row in remembered(peer.node, answer)]
    rows = sorted(rows, key=lambda row: int(row["ago_ms"]))
    exact = [row for row in rows if row["request"] == request]
    rows = (exact or rows)[:MAX_SHOWN]
    if not rows:
        reach = ", ".join(f"{peer.node} {span(answer.reaches_ms)}" for peer, answer in answers)
        text = f"no tier remembers a lookup of request {request!r} (they remember: {reach or 'nobody answers'})"
        return Listing(COLUMNS, [], [Wrong("", "", "", "unknown", text)])
    known = await namespaces(cluster)
    for row in rows:
        found = await _explained(cluster, row, known)
        row["cause"], row["because"] = str(found.cause), found.text
    return Listing(COLUMNS, rows)


async def _explained(cluster: Cluster, row: dict[str, Any], known: dict[bytes, Namespace]) -> Verdict:
    if not row["key"]:
        return Verdict(Cause.THERE, "everything that was asked for was found")
    key = bytes.fromhex(row["key"])
    now = await evidence(cluster, key, await same_content(cluster, key, known))
    then = now.before(f"{row['engine']} {row['request']}")
    found = verdict(then)
    if then is not now and row["reason"] != "waiting" and (since := verdict(now)).cause is Cause.THERE:
        found = found._replace(text=f"{found.text}; then this request saved it itself: {since.text}")
    if row["missing"] == "tail":
        found = Verdict(found.cause, f"only the tail, the rows after the last full block: {found.text}")
    if found.cause is Cause.THERE and row["reason"] != "waiting":
        found = Verdict(found.cause, f"it was not there in time ({row['reason']}); {found.text}")
    return found


def remembered(node: str, answer: inspection.Recalled) -> list[dict[str, Any]]:
    """Rows without cause."""
    return [
        {
            "request": answer.requests[i],
            "node": node,
            "engine": answer.engines[i],
            "fingerprint": answer.fingerprints[i],
            "ago_ms": answer.ages_ms[i],
            "waited_ms": answer.waited_ms[i],
            "asked": answer.asked[i],
            "hits": answer.hits[i],
            "tails": answer.tails[i],
            "tail_hits": answer.tail_hits[i],
            "fetched": answer.fetched[i],
            "read": answer.read[i],
            "reason": answer.reasons[i],
            "missing": _missing(answer, i),
            "key": answer.missing[i],
        }
        for i in range(len(answer.requests))
    ]


def _missing(answer: inspection.Recalled, i: int) -> str | int | None:
    if not answer.missing[i]:
        return None
    return answer.hits[i] if answer.hits[i] < answer.asked[i] else "tail"


# --- by tokens -------------------------------------------------------------------------------------------------------


async def _of_tokens(cluster: Cluster, args: argparse.Namespace, token_ids: list[int]) -> Listing:
    known = await namespaces(cluster)
    digits = args.fingerprint or ""
    wanted = set(prompt.chosen(args, known))
    schemes = {name: scheme for name, one in known.items() if (scheme := one.scheme) is not None}
    schemes |= prompt.chosen(args, known)
    pages = {name: prompt.blocks(scheme, token_ids) for name, scheme in schemes.items()}
    there = await copies(cluster, [block.key for mine in pages.values() for block in mine])
    hits = {name: _prefix(mine, there) for name, mine in pages.items()}
    asked = [name for name in wanted if digits or name not in known or known[name].engines] or list(wanted)
    rows = []
    for name in (name for name in pages if name in asked):
        mine, hit = pages[name], hits[name]
        row = prefix_row(name, known.get(name), mine, hit)
        if hit == len(mine):
            found = Verdict(Cause.THERE, "every page can be had")
        else:
            others = [_other(name, other, known, hits) for other in pages if other != name]
            found = verdict(await evidence(cluster, mine[hit].key, others, there[mine[hit].key]))
        rows.append(row | {"cause": str(found.cause), "because": found.text})
    return Listing(COLUMNS, rows)


def _prefix(mine: Sequence[Block], there: dict[bytes, list[Copy]]) -> int:
    hit = 0
    while hit < len(mine) and any(copy.state == "sealed" for copy in there[mine[hit].key]):
        hit += 1
    return hit


def _other(name: bytes, other: bytes, known: dict[bytes, Namespace], hits: dict[bytes, int]) -> Other:
    ours, theirs = known.get(name, Namespace(name)), known.get(other, Namespace(other))
    return Other(theirs.label, differing(ours.factors, theirs.factors), hits[other] > hits[name])


def prefix_row(name: bytes, namespace: Namespace | None, mine: Sequence[Block], hit: int) -> dict[str, Any]:
    """How far the prefix of a prompt goes under one fingerprint, without cause."""
    full = [block for block in mine if not block.tail]
    missing = mine[hit] if hit < len(mine) else None
    return {
        "request": None,
        "node": None,
        "engine": ", ".join(namespace.engines) if namespace else "",
        "fingerprint": name.hex(),
        "ago_ms": None,
        "waited_ms": None,
        "asked": len(full),
        "hits": min(hit, len(full)),
        "tails": len(mine) - len(full),
        "tail_hits": max(0, hit - len(full)),
        "fetched": None,
        "read": None,
        "reason": None,
        "missing": None if missing is None else "tail" if missing.tail else missing.number,
        "key": missing.key.hex() if missing is not None else "",
    }


def _tone(cause: Any) -> Tone:
    return Tone.GOOD if cause == Cause.THERE else Tone.DOUBT if cause == Cause.PENDING else Tone.BAD


COLUMNS = (
    Column("REQUEST", "request"),
    Column("NODE", "node"),
    Column("ENGINE", "engine"),
    Column("FINGERPRINT", "fingerprint", lambda name: str(name)[:SHORT], wide=True),
    Column("WHEN", "ago_ms", ago),
    Column("WAITED", "waited_ms", span, wide=True),
    Column("ASKED", "asked"),
    Column("FOUND", "hits"),
    Column("TAILS", "tails", wide=True),
    Column("TAILS FOUND", "tail_hits", wide=True),
    Column("FETCHED", "fetched", wide=True),
    Column("FROM DISK", "read", wide=True),
    Column("REASON", "reason"),
    Column("MISSING", "missing"),
    Column("KEY", "key", wide=True),
    Column("CAUSE", "cause", tone=_tone),
    Column("BECAUSE", "because"),
)
