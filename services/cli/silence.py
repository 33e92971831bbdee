"""Who fell silent, and what can be said of a service that does not answer: does anybody listen at its endpoint?"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli.access import BARRED
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.departed import missing
from pegaflow.services.cli.listing import Wrong
from pegaflow.services.cli.table import ago
from pegaflow.services.reach import reach

FORGOTTEN_MS = 24 * 3_600_000
"""A node that was silent for so long is not missed any more."""
WAIT_S = 0.25
_WORDS = {
    "": "a socket greets there: its process is busy or stuck, or does not let us in (keys)",
    "refused": "nobody listens there: the process is not running",
    "silent": "somebody listens there and says nothing: the process is stopped, or hangs",
    "deadline": "no connection in time: its machine, or the way there",
    "no_route": "there is no way there",
    "not_zmq": "another program listens there",
    "not_here": "no such path: the process is not running, or not on this machine",
    "no_permission": "this user may not open that socket: look as the user of the service, or at its tcp endpoint",
}


async def gone(cluster: Cluster) -> list[Wrong]:
    """Nodes that metaservers have lost sight of and that are not back: a tier that died an hour ago is in nobody's list."""
    answers = await asyncio.gather(*(_status(cluster, peer) for peer in cluster.metaservers))
    return await explained(lost(answers, {peer.node for peer in cluster.tiers}))


def lost(documents: Sequence[Mapping[str, Any]], here: Collection[str]) -> list[Wrong]:
    """Out of the metaservers' status documents, each node once."""
    found = {one.node: one for document in documents for one in missing(document, here, FORGOTTEN_MS)}
    return [
        Wrong(
            "tier",
            one.node,
            one.endpoint,
            one.reason,
            f"fell silent {ago(one.ago_ms)}, {one.sealed or 'no'} pages were known there",
        )
        for one in found.values()
    ]


async def explained(silent: Sequence[Wrong]) -> list[Wrong]:
    """The same, each with what its endpoint shows, after WAIT_S at most. Of who is there and lets us not in all is said."""
    found = await reach([one.endpoint for one in silent], WAIT_S)
    words = [
        _WORDS.get(code, "") if one.endpoint and one.code not in BARRED else ""
        for one, code in zip(silent, found.codes, strict=True)
    ]
    return [one._replace(text=f"{one.text}; {word}") if word else one for one, word in zip(silent, words, strict=True)]


async def _status(cluster: Cluster, peer: Peer) -> Mapping[str, Any]:
    """Empty if there is no answer; whoever asks has noticed that already."""
    try:
        return document_of(await cluster.tell(peer, Status(), Document, cluster.left_s / 2))
    except PegaflowError:
        return {}
