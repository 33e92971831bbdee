"""Keys of a request's blocks and tail, from vLLM's own hashes. Reads vLLM's objects (`v1/request.py`), never changes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pegaflow.common.keys import Key, key
from pegaflow.connector.load_tracker import Version

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

TailHash = Callable[[bytes | None, Sequence[int]], bytes]
"""vLLM's block hash over `(parent, ids, None)`; parent None stands for NONE_HASH."""


class RequestKeys:
    """`fingerprint` is known once the ranks have told their layouts. Sizes in tokens.

    `secret`: after a reset, what sets this engine's keys apart from all that were used before, here and elsewhere.
    """

    def __init__(self, block_size: int, hash_block_size: int, tail_hash: TailHash) -> None:
        self._block_size = block_size
        self._hashes_per_block = block_size // hash_block_size
        self._tail_hash = tail_hash
        self.fingerprint = b""
        self.secret = b""

    def full_blocks(self, request: Request) -> int:
        """How many blocks have a hash."""
        return len(request.block_hashes) // self._hashes_per_block

    def block(self, request: Request, index: int) -> Key:
        return self._key(self.block_hash(request, index))

    def blocks(self, request: Request, first: int, last: int) -> list[Key]:
        return [self._key(self.block_hash(request, index)) for index in range(first, last)]

    def end(self, request: Request, end: int) -> Key:
        """Key of the page that ends with the prompt's first `end` ids."""
        full, rest = divmod(end, self._block_size)
        if rest == 0:
            return self.block(request, full - 1)
        parent = self.block_hash(request, full - 1) if full else None
        assert request.prompt_token_ids is not None
        return self._key(self._tail_hash(parent, request.prompt_token_ids[end - rest : end]))

    def block_hash(self, request: Request, index: int) -> bytes:
        """A block's hash is the one that ends at its boundary: vLLM may hash in finer steps."""
        return request.block_hashes[(index + 1) * self._hashes_per_block - 1]

    def cached_blocks(self, request: Request, pool: BlockPool | None) -> int:
        """How many blocks vLLM will probably find in its own cache: these need no lookup and no fetch."""
        if pool is None or not pool.enable_caching or self._hashes_per_block != 1:
            return 0
        hashes = request.block_hashes
        most = min((request.num_tokens - 1) // self._block_size, len(hashes))
        for index in range(most):
            if pool.get_cached_block(hashes[index], [0]) is None:
                return index
        return most

    def _key(self, content: bytes) -> Key:
        if self.secret:
            content = hashlib.blake2b(content, digest_size=len(content), key=self.secret).digest()
        return key(self.fingerprint, content)


def plain(request: Request) -> bool:
    """Whether the ids alone decide the KV of a request, so that its tail has a key anyone can derive."""
    return not (
        request.lora_request
        or request.cache_salt
        or request.mm_features
        or request.prompt_embeds is not None
        or request.prompt_token_ids is None
        or request.resumable
    )


def version(request: Request) -> Version:
    """Changes when the request has other ids than before; costs the same for any length."""
    hashes = request.block_hashes
    return request.num_tokens, hashes[-1] if hashes else b""
