"""`pegaflow catalogue`: what metaservers believe of each tier, beside what the tier says: in short, key by key, and anew.

A metaserver follows a tier message by message, so the two can be compared at the same message number only. What differs while
pages come and go is looked at again until it stands still, as long as the time lasts.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.catalogue import Sync, SyncChunk
from pegaflow.common.wire.messages.inspection import MAX_KEYS
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.cli import consent, target
from pegaflow.services.cli.cluster import Cluster, Peer, add_options, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.target import UsageError

NAME = "catalogue"
HELP = "what metaservers believe, beside what tiers say: digest, diff, resync NODE"
LOOKS = 5
PAUSE_S = 0.1
_STATES = ("gone", "pending", "sealed")
_LEVELS = ("memory", "disk")

Entry = tuple[int, int, int]
"""State, level, size in bytes."""
GONE: Entry = (0, 0, 0)


class Short(NamedTuple):
    """One side of a catalogue: which life, up to which message, digest and counts."""

    epoch: int
    seq: int
    digest: str
    sealed: int
    pending: int
    syncing: bool


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    one = verbs.add_parser("digest", help="digest and counts per node, from both sides")
    add_options(one)
    one.set_defaults(run=lambda args: listed(args, _digest))
    one = verbs.add_parser("diff", help="the keys of which both sides say different things")
    one.add_argument("node", nargs="?", metavar="NODE", help="only this one")
    add_options(one)
    one.set_defaults(run=lambda args: listed(args, lambda cluster: diff(cluster, args.node)))
    resync = verbs.add_parser("resync", help="let the metaservers copy a node's catalogue anew")
    resync.add_argument("node", metavar="NODE")
    target.add_options(resync)
    consent.add_options(resync)
    resync.set_defaults(run=_resync)


# --- digest ----------------------------------------------------------------------------------------------------------


async def _digest(cluster: Cluster) -> Listing:
    rows: list[dict[str, Any]] = []
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(PAUSE_S)
        rows = await _digests(cluster)
        if all(row["verdict"] not in ("moving", "syncing") for row in rows) or cluster.left_s < 2 * PAUSE_S:
            break
    wrong = [
        Wrong("metaserver", row["metaserver"], "", row["verdict"], f"about node {row['node']}")
        for row in rows
        if row["verdict"] in ("differs", "other_life", "unknown")
    ]
    return Listing(DIGESTS, rows, wrong)


async def _digests(cluster: Cluster) -> list[dict[str, Any]]:
    told = await cluster.ask_each([*cluster.metaservers, *cluster.tiers], inspection.Digest(), inspection.Digests)
    tiers = {peer.node: short for peer, answer in told if peer.service == "tier" for short in shorts(answer).values()}
    believed = [(peer.node, shorts(answer)) for peer, answer in told if peer.service == "metaserver"]
    return compared(tiers, believed)


def shorts(answer: inspection.Digests) -> dict[str, Short]:
    """By node."""
    return {
        node: Short(
            answer.epochs[i],
            answer.seqs[i],
            answer.digests[16 * i : 16 * i + 16].hex(),
            answer.sealed[i],
            answer.pending[i],
            bool(answer.syncing[i]),
        )
        for i, node in enumerate(answer.nodes)
    }


def compared(tiers: Mapping[str, Short], believed: Sequence[tuple[str, Mapping[str, Short]]]) -> list[dict[str, Any]]:
    """One row per tier that answered and metaserver; without a metaserver one per tier."""
    rows = []
    for node, mine in tiers.items():
        for metaserver, copies in believed or [("", {})]:
            theirs = copies.get(node)
            rows.append(
                {
                    "node": node,
                    "epoch": f"{mine.epoch:016x}",
                    "seq": mine.seq,
                    "digest": mine.digest,
                    "sealed": mine.sealed,
                    "pending": mine.pending,
                    "metaserver": metaserver or None,
                    "believed_seq": theirs.seq if theirs else None,
                    "believed_digest": theirs.digest if theirs else None,
                    "believed_sealed": theirs.sealed if theirs else None,
                    "believed_pending": theirs.pending if theirs else None,
                    "verdict": _judged(mine, theirs) if metaserver else "alone",
                }
            )
    return rows


def _judged(mine: Short, theirs: Short | None) -> str:
    if theirs is None:
        return "unknown"
    if theirs.syncing:
        return "syncing"
    if mine.epoch != theirs.epoch:
        return "other_life"
    if mine[2:5] == theirs[2:5]:
        return "same"
    return "differs" if mine.seq == theirs.seq else "moving"


# --- diff ------------------------------------------------------------------------------------------------------------


async def diff(cluster: Cluster, node: str | None) -> Listing:
    """What metaservers believe otherwise than the tiers, all or this one, in each of several looks."""
    tiers = [peer for peer in cluster.tiers if node in (None, peer.node)]
    if node is not None and not tiers:
        raise UsageError(f"no node {node!r} is known; there are: {', '.join(peer.node for peer in cluster.tiers) or 'none'}")
    if not cluster.metaservers:
        raise UsageError("a diff needs a metaserver that answers, to compare a tier with")
    rows: list[dict[str, Any]] = []
    wrong: list[Wrong] = []
    notes: list[str] = []
    for tier in tiers:
        for metaserver in cluster.metaservers:
            try:
                found, note = await _differences(cluster, tier, metaserver)
            except PegaflowError as error:
                wrong.append(Wrong("tier", tier.node, tier.endpoint, error.code, error.text))
                continue
            rows += found
            notes.append(note)
    if rows:
        wrong.append(Wrong("metaserver", "", "", "differs", f"{len(rows)} differences that stand still"))
    return Listing(DIFFERENCES, rows, wrong, notes)


async def _differences(cluster: Cluster, tier: Peer, metaserver: Peer) -> tuple[list[dict[str, Any]], str]:
    """What differs in every one of several looks."""
    rows: list[dict[str, Any]] = []
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(PAUSE_S)
        head, there = await _snapshot(cluster, tier)
        seq, believed = await _believed(cluster, tier.node, metaserver, list(there))
        digests = await cluster.tell(metaserver, inspection.Digest(), inspection.Digests)
        counts = shorts(digests).get(tier.node)
        rows = differences(tier.node, metaserver.node, there, believed)
        held = sum(entry[0] != 0 for entry in believed.values())
        more = counts.sealed + counts.pending - held if counts is not None and counts.seq == head == seq else 0
        if more > 0:  # a metaserver keeps names of keys, not keys
            rows.append(_difference(tier.node, metaserver.node, None, GONE, (2, 0, 0)) | {"count": more})
        note = f"node {tier.node} at {head}, metaserver {metaserver.node} at {seq}: {len(there)} keys, {len(rows)} differences"
        if not rows or cluster.left_s < 2 * PAUSE_S:
            break
    return rows, note


async def _snapshot(cluster: Cluster, tier: Peer) -> tuple[int, dict[bytes, Entry]]:
    """The tier's own word, as a metaserver would get it."""
    clone, sync = secrets.randbits(63) | 1, 1
    found: dict[bytes, Entry] = {}
    chunk, chunks, head = 0, 1, 0
    while chunk < chunks:
        answer = await cluster.tell(tier, Sync(clone, sync, chunk), SyncChunk)
        chunks, head = answer.chunks, answer.head
        found.update(zip(answer.keys, zip(answer.states, answer.levels, answer.sizes, strict=True), strict=True))
        chunk += 1
    return head, found


async def _believed(cluster: Cluster, node: str, metaserver: Peer, keys: list[bytes]) -> tuple[int, dict[bytes, Entry]]:
    found: dict[bytes, Entry] = {}
    by_width: dict[int, list[bytes]] = {}
    for key in keys:
        by_width.setdefault(len(key), []).append(key)
    seq = 0
    for mine in by_width.values() or [[]]:
        for at in range(0, len(mine) or 1, MAX_KEYS):
            part = mine[at : at + MAX_KEYS]
            answer = await cluster.tell(metaserver, inspection.Believe(node, part), inspection.Believed)
            if len(answer.states) != len(part):
                raise RemoteError(ErrorCode.BAD_MESSAGE, f"{len(answer.states)} answers to {len(part)} keys")
            seq = answer.seq
            found.update(zip(part, zip(answer.states, answer.levels, answer.sizes, strict=True), strict=True))
    return seq, found


def differences(
    node: str, metaserver: str, there: Mapping[bytes, Entry], believed: Mapping[bytes, Entry]
) -> list[dict[str, Any]]:
    """Keys of the tier of which the metaserver believes something else."""
    return [
        _difference(node, metaserver, key, entry, other)
        for key, entry in there.items()
        if (other := believed.get(key, GONE)) != entry
    ]


def _difference(node: str, metaserver: str, key: bytes | None, entry: Entry, other: Entry) -> dict[str, Any]:
    return {
        "node": node,
        "metaserver": metaserver,
        "key": key.hex() if key is not None else None,
        "count": 1,
        "tier_state": _name(_STATES, entry[0]),
        "tier_level": _name(_LEVELS, entry[1]),
        "tier_bytes": entry[2],
        "believed_state": _name(_STATES, other[0]),
        "believed_level": _name(_LEVELS, other[1]),
        "believed_bytes": other[2],
    }


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)


# --- resync ----------------------------------------------------------------------------------------------------------


def _resync(args: argparse.Namespace) -> int:
    """0: every metaserver that answers has begun. 1: one refused, or did not answer."""
    at = target.choose(args)
    if not consent.agreed(args, f"let every metaserver copy the catalogue of node {args.node} anew"):
        return 1

    async def ask() -> tuple[list[tuple[Peer, Done]], list[Wrong]]:
        async with Cluster(at) as cluster:
            return await cluster.ask_each(cluster.metaservers, inspection.Resync(args.node), Done), cluster.wrong

    done, wrong = asyncio.run(ask())
    return consent.told([f"metaserver {peer.node} copies the catalogue of node {args.node} anew" for peer, _ in done], wrong)


def _tone(verdict: Any) -> Tone:
    return {"same": Tone.GOOD, "alone": Tone.PLAIN, "moving": Tone.DOUBT, "syncing": Tone.DOUBT}.get(str(verdict), Tone.BAD)


def _digits(digest: Any) -> str:
    return str(digest)[:8] if digest else "-"


DIGESTS = (
    Column("NODE", "node"),
    Column("EPOCH", "epoch", wide=True),
    Column("AT", "seq"),
    Column("DIGEST", "digest", _digits),
    Column("SEALED", "sealed"),
    Column("PENDING", "pending"),
    Column("METASERVER", "metaserver"),
    Column("AT", "believed_seq"),
    Column("DIGEST", "believed_digest", _digits),
    Column("SEALED", "believed_sealed"),
    Column("PENDING", "believed_pending"),
    Column("VERDICT", "verdict", tone=_tone),
)
DIFFERENCES = (
    Column("NODE", "node"),
    Column("METASERVER", "metaserver"),
    Column("KEY", "key"),
    Column("KEYS", "count"),
    Column("TIER SAYS", "tier_state"),
    Column("LEVEL", "tier_level"),
    Column("BYTES", "tier_bytes"),
    Column("BELIEVED", "believed_state"),
    Column("LEVEL", "believed_level"),
    Column("BYTES", "believed_bytes"),
)
