"""Names of pages, derived without vLLM from ids alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pegaflow.common.keys import BlockHash, HashAlgorithm, Key, key, none_hash, prefix_hashes, tail_hash

ALGORITHM = HashAlgorithm.SHA256_CBOR


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one engine and of all that share its pages."""

    fingerprint: bytes
    block_size: int

    def blocks(self, ids: list[int]) -> list[Key]:
        """Of the full blocks of `ids`, in order."""
        return [key(self.fingerprint, content) for content in prefix_hashes(ALGORITHM, _none(), ids, self.block_size)]

    def tail(self, prompt: list[int]) -> Key | None:
        """Of the rows after the last full block."""
        content = tail_hash(ALGORITHM, _none(), prompt, self.block_size)
        return None if content is None else key(self.fingerprint, content)


def _none() -> BlockHash:
    return none_hash(ALGORITHM, os.environ.get("PYTHONHASHSEED"))
