"""How one engine names the pages of a prompt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pegaflow.common.keys import BlockHash, HashAlgorithm, Key, block_hash, key, prefix_hashes


@dataclass(frozen=True, slots=True)
class KeyScheme:
    """Sizes in tokens; `none_hash` is the parent of a first block."""

    fingerprint: bytes
    block_size: int
    hash_block_size: int
    algorithm: HashAlgorithm
    none_hash: bytes

    def keys(self, ids: Sequence[int]) -> list[Key]:
        """Of the full blocks of a prompt's beginning, in order."""
        hashes = prefix_hashes(self.algorithm, BlockHash(self.none_hash), ids, self.hash_block_size)
        step = self.block_size // self.hash_block_size
        return [key(self.fingerprint, content) for content in hashes[step - 1 :: step]]

    def tail(self, ids: Sequence[int]) -> Key | None:
        """Of the rows after the last full block; None where the prompt ends with a block."""
        full = len(ids) // self.block_size * self.block_size
        if full == len(ids):
            return None
        parents = prefix_hashes(self.algorithm, BlockHash(self.none_hash), ids[:full], self.hash_block_size)
        parent = parents[-1] if parents else BlockHash(self.none_hash)
        return key(self.fingerprint, block_hash(self.algorithm, parent, ids[full:]))
