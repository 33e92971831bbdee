"""`pegaflow page`: where a page is and what became of it, by its key; where the pages of a prompt are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pegaflow.common.keys import FINGERPRINT_BYTES
from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.inspection import MAX_FOUND
from pegaflow.services.cli import prompt
from pegaflow.services.cli.cluster import Cluster, add_options, listed
from pegaflow.services.cli.column import Column, text
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.namespaces import SHORT, Namespace, namespaces
from pegaflow.services.cli.prompt import Block
from pegaflow.services.cli.sight import Copy, Past, copies, past, well
from pegaflow.services.cli.table import ago, size, span
from pegaflow.services.cli.target import UsageError

NAME = "page"
HELP = "where a page is and what became of it (show KEY), where a prompt's pages are (find)"
_HASHES = (16, 32)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="one page: copies, and its story")
    show.add_argument("key", metavar="KEY", help="hexadecimal: the key, its content hash, or the first digits of either")
    add_options(show)
    show.set_defaults(run=lambda args: listed(args, lambda cluster: _show(cluster, args.key)))
    find = verbs.add_parser("find", help="the pages of a prompt, block by block")
    prompt.add_options(find, required=True)
    add_options(find)
    find.set_defaults(run=_run_find)


# --- show ------------------------------------------------------------------------------------------------------------


async def _show(cluster: Cluster, given: str) -> Listing:
    key = await resolve(cluster, given)
    if key is None:
        return Listing(COPIES, [], [Wrong("", "", "", "unknown", f"no tier that answers knows a page {given}")])
    there = (await copies(cluster, [key]))[key]
    return shown(key, there, await past(cluster, key))


def shown(key: bytes, there: Sequence[Copy], story: Past) -> Listing:
    """Copies, and the story below them; nobody having it, and nothing being remembered of it, is not well."""
    moments = [
        {"node": one.node, "ago_ms": one.ago_ms, "step": one.step.name.lower(), "what": one.words(), "who": one.who}
        for one in story.moments
    ]
    rows = [{"key": key.hex(), **copy._asdict(), "story": [row for row in moments if row["node"] == copy.node]} for copy in there]
    elsewhere = {moment.node for moment in story.moments} - {copy.node for copy in there}
    rows += [
        {"key": key.hex(), "node": node, "state": "gone", "story": [row for row in moments if row["node"] == node]}
        for node in sorted(elsewhere)
    ]
    wrong = [] if rows else [Wrong("", "", "", "unknown", f"nobody has page {key.hex()} or remembers it")]
    reach = ", ".join(f"{node} {span(reach)}" for node, reach in sorted(story.reaches_ms.items()))
    notes = [f"page {key.hex()}; the tiers remember: {reach or 'nothing'}"]
    return Listing(COPIES, rows, wrong, notes, [Listing(STORY, moments)] if moments else [])


async def resolve(cluster: Cluster, given: str) -> bytes | None:
    """The one key that is meant; None: nobody knows it. Raises `UsageError` for what is no key, or not one only."""
    digits = given.lower().removeprefix("0x")
    if not digits or not set(digits) <= set("0123456789abcdef") or len(digits) > 2 * (FINGERPRINT_BYTES + max(_HASHES)):
        raise UsageError(f"{given!r} is no key: hexadecimal digits, at most {2 * (FINGERPRINT_BYTES + max(_HASHES))}")
    prefix = bytes.fromhex(digits[: len(digits) // 2 * 2])
    answers = await cluster.ask_each(cluster.tiers, inspection.Find(prefix), inspection.Found)
    found = {key: None for _, answer in answers for key in answer.keys if _begins(key, digits)}
    if len(found) > 1:
        some = "\n  ".join([*list(found)[:8], *(["…"] if len(found) > 8 or any(answer.more for _, answer in answers) else [])])
        raise UsageError(f"{given} is the beginning of {_many(len(found))} pages:\n  {some}")
    if found:
        return bytes.fromhex(next(iter(found)))
    whole = bytes.fromhex(digits) if len(digits) % 2 == 0 else b""
    if len(whole) - FINGERPRINT_BYTES in _HASHES and len(whole) not in _HASHES:
        return whole
    return await _remembered(cluster, whole)


async def _remembered(cluster: Cluster, content: bytes) -> bytes | None:
    """A content hash, or a key of 32 bytes, that nobody has now: is it remembered under a fingerprint that is known?"""
    if len(content) not in _HASHES:
        return None
    candidates = [name + content for name in await namespaces(cluster)]
    if len(content) == FINGERPRINT_BYTES + min(_HASHES):
        candidates.append(content)
    for key in candidates:
        if (await past(cluster, key)).moments:
            return key
    return content if len(content) == FINGERPRINT_BYTES + min(_HASHES) else None


def _begins(key: str, digits: str) -> bool:
    return key.startswith(digits) or key.startswith(digits, 2 * FINGERPRINT_BYTES)


def _many(count: int) -> str:
    return f"{MAX_FOUND} or more" if count >= MAX_FOUND else str(count)


# --- find ------------------------------------------------------------------------------------------------------------


def _run_find(args: argparse.Namespace) -> int:
    token_ids = prompt.ids(args)

    async def look(cluster: Cluster) -> Listing:
        known = await namespaces(cluster)
        schemes = prompt.chosen(args, known)
        pages = {name: prompt.blocks(scheme, token_ids) for name, scheme in schemes.items()}
        there = await copies(cluster, [block.key for mine in pages.values() for block in mine])
        return located(pages, there, known)

    return listed(args, look)


def located(pages: dict[bytes, list[Block]], there: dict[bytes, list[Copy]], known: dict[bytes, Namespace]) -> Listing:
    """One row per page of the prompt and fingerprint; of several fingerprints those that have some of it, or the first."""
    having = [name for name, mine in pages.items() if any(there[block.key] for block in mine)] or list(pages)[:1]
    rows = [_row(name, block, there[block.key]) for name in having for block in pages[name]]
    notes = []
    for name in having:
        hit = 0
        for block in pages[name]:
            if not any(copy.state == "sealed" for copy in there[block.key]):
                break
            hit += 1
        label = known[name].label if name in known else name.hex()[:SHORT]
        notes.append(f"fingerprint {label}: the first {hit} of {len(pages[name])} pages can be had")
    return Listing(BLOCKS, rows, (), notes)


def _row(name: bytes, block: Block, there: Sequence[Copy]) -> dict[str, Any]:
    states = [copy.state for copy in there]
    best = next((state for state in ("sealed", "fetching", "pending") if state in states), states[0] if states else "unknown")
    used = [copy.used_ms for copy in there if copy.used_ms is not None]
    return {
        "fingerprint": name.hex(),
        "block": block.number,
        "first_token": block.start,
        "last_token": block.end - 1,
        "tail": block.tail,
        "key": block.key.hex(),
        "state": best,
        "owners": [
            f"{copy.node} ({copy.level})" if copy.level != "memory" else copy.node for copy in there if copy.state == "sealed"
        ],
        "size_bytes": max((copy.size_bytes for copy in there), default=None),
        "leases": sum(copy.leases for copy in there),
        "pins": sum(copy.pins for copy in there),
        "used_ms": min(used, default=None),
        "copies": [copy._asdict() for copy in there],
    }


def _short(key: Any) -> str:
    return str(key)[2 * FINGERPRINT_BYTES :][:16] if key else "-"


def _first(value: Any) -> str:
    return str(value[0])[:16] if value else "-"


COPIES = (
    Column("NODE", "node"),
    Column("STATE", "state", tone=well),
    Column("LEVEL", "level"),
    Column("SIZE", "size_bytes", size),
    Column("SHARDS", "shards", wide=True),
    Column("LEASES", "leases"),
    Column("PINS", "pins"),
    Column("HOLDS", "holds", wide=True),
    Column("USED", "used_ms", ago),
    Column("KEPT FOR", "kept_ms", span, wide=True),
    Column("", "kept"),
    Column("VERIFIED", "verified"),
    Column("REPLICA", "replica", wide=True),
    Column("CHECKSUM", "checksums", _first),
    Column("SAVED BY", "engine"),
    Column("REQUEST", "request"),
    Column("KEY", "key", wide=True),
    Column("", "story"),
)
STORY = (Column("WHEN", "ago_ms", ago), Column("NODE", "node"), Column("WHAT", "what"), Column("FOR, BY, WHY", "who"))
BLOCKS = (
    Column("FINGERPRINT", "fingerprint", lambda name: str(name)[:SHORT], wide=True),
    Column("BLOCK", "block"),
    Column("FROM", "first_token"),
    Column("TO", "last_token"),
    Column("TAIL", "tail", lambda tail: "tail" if tail else ""),
    Column("KEY", "key", _short),
    Column("STATE", "state", tone=well),
    Column("OWNERS", "owners", text),
    Column("SIZE", "size_bytes", size),
    Column("LEASES", "leases"),
    Column("PINS", "pins"),
    Column("USED", "used_ms", ago),
    Column("", "copies"),
)
