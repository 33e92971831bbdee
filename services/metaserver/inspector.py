"""Answers to whoever looks at this metaserver's copies of the catalogues, pure. To look changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pegaflow.common.bus.generation import entry_level, entry_size, entry_state
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.digest import DIGEST_BYTES
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.inspection import Believe, Believed, Digest, Digests
from pegaflow.services.metaserver.nodes import Node, Nodes


class Inspector:
    """Over the nodes of one metaserver; owns nothing."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def answer(self, message: Any) -> Any:
        """The reply; None: this is no question about what is believed. Raises `unknown` or `not_ready`."""
        match message:
            case Digest():
                return self._digests(self._nodes.by_name.values())
            case Believe():
                return self._believed(message)
        return None

    def _digests(self, nodes: Iterable[Node]) -> Digests:
        known = [node for node in nodes if not node.elsewhere]
        copies = [node.clone.current for node in known]
        return Digests(
            [node.name for node in known],
            u64s(node.clone.epoch for node in known),
            u64s(node.clone.seen for node in known),
            b"".join(copy.digest if copy is not None else bytes(DIGEST_BYTES) for copy in copies),
            u64s(node.clone.sealed for node in known),
            u64s(node.clone.pending for node in known),
            bytes(node.clone.syncing or not node.clone.whole for node in known),
        )

    def _believed(self, message: Believe) -> Believed:
        clone = self.node(message.node).clone
        copy = clone.current
        entries = copy.entries_of(message.keys) if copy is not None else [0] * len(message.keys)
        return Believed(
            clone.epoch,
            clone.seen,
            bytes(map(entry_state, entries)),
            bytes(map(entry_level, entries)),
            u32s(map(entry_size, entries)),
        )

    def node(self, name: str) -> Node:
        """Whose catalogue is kept here. Raises `unknown` or `not_ready`."""
        node = self._nodes.by_name.get(name)
        if node is None:
            raise RemoteError(ErrorCode.UNKNOWN, f"no node {name!r} is known here")
        if node.elsewhere:
            raise RemoteError(ErrorCode.NOT_READY, f"another metaserver keeps the catalogue of node {name!r}")
        return node
