"""Collects what a verdict on a page needs, from every tier and metaserver that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pegaflow.common.keys import FINGERPRINT_BYTES
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli.cluster import Cluster, document_of
from pegaflow.services.cli.departed import departed
from pegaflow.services.cli.namespaces import Namespace, differing
from pegaflow.services.cli.sight import Copy, copies, past
from pegaflow.services.cli.verdict import Absent, Evidence, Other

LONG_AGO_MS = 3_600_000
"""Nobody asks about a page of a node that died before that."""


async def evidence(cluster: Cluster, key: bytes, others: Sequence[Other], there: Sequence[Copy] | None = None) -> Evidence:
    """All that is known of this key; `there`: its copies, if they are known already."""
    if there is None:
        there = (await copies(cluster, [key]))[key]
    story = await past(cluster, key)
    return Evidence(there, story.moments, story.reaches_ms, others, await absent(cluster))


async def absent(cluster: Cluster) -> list[Absent]:
    """Tiers that do not answer, and those that a metaserver remembers and that are not back."""
    found = {
        one.node: Absent(one.node, one.code, None, None) for one in cluster.wrong if one.service == "tier" and one.node != "?"
    }
    here = {peer.node: f"{peer.epoch:016x}" for peer in cluster.tiers}
    for _, answer in await cluster.ask_each(cluster.metaservers, Status(), Document):
        for left in departed(document_of(answer)):
            back = left.node in here
            if left.ago_ms <= LONG_AGO_MS and back == (left.reason == "replaced") and here.get(left.node) != left.epoch:
                found[left.node] = Absent(left.node, left.reason, left.ago_ms, left.sealed)
    return list(found.values())


async def same_content(cluster: Cluster, key: bytes, known: Mapping[bytes, Namespace]) -> list[Other]:
    """The other fingerprints, for a key whose tokens are not known: they have it under the same hash, or hash differently.

    Of one whose engines have left nothing is guessed: else it would be the reason of every cold prompt from then on.
    """
    mine, content = key[:FINGERPRINT_BYTES], key[FINGERPRINT_BYTES:]
    rest = {name: one for name, one in known.items() if name != mine}
    ours = known[mine].factors if mine in known else {}
    found = await copies(cluster, [name + content for name in rest])
    return [
        Other(
            one.label,
            differing(ours, one.factors),
            True if found[name + content] else None if one.engines and _apart(ours, one.factors) else False,
        )
        for name, one in rest.items()
    ]


_NAMING = ("none_hash", "hash_algorithm", "block_size", "hash_block_size")


def _apart(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """One model, named in different ways: the same tokens have another hash there."""
    return ours.get("model") == theirs.get("model") and any(ours.get(name) != theirs.get(name) for name in _NAMING)
