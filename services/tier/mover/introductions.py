"""Which peers there are and which of them each mover was told of. Bounded: a new life of a node replaces the one before."""

from __future__ import annotations

from typing import Final

from pegaflow.services.tier.mover.child import Mover
from pegaflow.services.tier.mover.wire import AddPeer, ForgetPeer, Metadata, WireBroken

# A connection and some kilobytes each, in every mover. As many as a tier keeps request clients for.
MAX_PEERS: Final = 1024


class Introductions:
    """Owns what the movers know of peers; a peer that is forgotten is introduced again when it is read from again."""

    def __init__(self, limit: int = MAX_PEERS) -> None:
        self._limit = limit
        self._peers: dict[str, tuple[AddPeer, bytes]] = {}  # the one unused for longest comes first
        self._told: dict[Mover, dict[str, bytes]] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def learn(self, peer: str, metadata: bytes) -> AddPeer:
        """`peer` ("node/epoch") is about to be read from. Raises WireBroken for metadata that no mover of this node made."""
        known = self._peers.get(peer)
        node = peer.rpartition("/")[0]
        if known is None or known[1] != metadata:
            found = Metadata.unpack(metadata)
            if found.agent.rpartition(":")[0] != node:  # or what one peer sends would end another's connection
                raise WireBroken(f"metadata of {found.agent!r}")
            known = AddPeer(peer, found.agent, found.base, found.size, found.blob), bytes(metadata)
        if self._peers.pop(peer, None) is None:
            for other in [other for other in self._peers if other.rpartition("/")[0] == node]:
                self.forget(other)
        self._peers[peer] = known
        while len(self._peers) > self._limit:
            self.forget(next(iter(self._peers)))
        return known[0]

    def forget(self, peer: str) -> None:
        """Movers drop the connection once none of its READs is unfinished."""
        self._peers.pop(peer, None)
        for mover, told in self._told.items():
            if told.pop(peer, None) is not None:
                mover.send(ForgetPeer(peer))

    def introduce(self, mover: Mover, peer: str) -> None:
        """Before a READ of `peer` is sent to this mover: it knows the latest of it then."""
        introduction, metadata = self._peers[peer]
        told = self._told[mover]
        if told.get(peer) != metadata:
            mover.send(introduction)
            told[peer] = metadata

    def started(self, mover: Mover) -> None:
        self._told[mover] = {}

    def gone(self, mover: Mover) -> None:
        del self._told[mover]
