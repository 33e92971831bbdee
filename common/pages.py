"""Page layout: how the bytes of one block of one rank lie in a page.

    page = layer 0's block | layer 1's block | …        (in the order in which vLLM registered the layers)

Two engines may share pages only if their layouts are equal, so the layout has a digest, which is part of the
fingerprint and is compared again at attach.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One layer's share of a page.

    `block_bytes`: bytes of one block of this layer. `form`: dtype, shape and memory order of one block as text,
    such as `float32[2,32,128]@4096,128,1`; two layers of equal size but different order must not be taken for
    each other.
    """

    name: str
    block_bytes: int
    form: str

    def __post_init__(self) -> None:
        if self.block_bytes <= 0:
            raise ValueError(f"layer {self.name}: a block of {self.block_bytes} bytes")


@dataclass(frozen=True, slots=True)
class PageLayout:
    """All layers of one rank, in registered order. `block_size` in tokens, sizes in bytes."""

    block_size: int
    layers: tuple[LayerLayout, ...]
    page_bytes: int = field(init=False)
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        if self.block_size <= 0 or not self.layers:
            raise ValueError("a page needs a block size and at least one layer")
        if len({layer.name for layer in self.layers}) != len(self.layers):
            raise ValueError("two layers of one name")
        object.__setattr__(self, "page_bytes", sum(layer.block_bytes for layer in self.layers))
        object.__setattr__(self, "digest", self._digest())

    def _digest(self) -> bytes:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"pegaflow-layout")
        digest.update(b"%d" % self.block_size)
        for layer in self.layers:
            digest.update(f"\n{layer.name}\t{layer.block_bytes}\t{layer.form}".encode())
        return digest.digest()

    def offsets(self) -> Iterator[tuple[LayerLayout, int]]:
        """Each layer with the offset of its bytes within the page."""
        offset = 0
        for layer in self.layers:
            yield layer, offset
            offset += layer.block_bytes

    @classmethod
    def of(cls, block_size: int, layers: Iterable[tuple[str, int, str]]) -> PageLayout:
        """From `(name, bytes of one block, form)` in registered order."""
        return cls(block_size, tuple(LayerLayout(*layer) for layer in layers))
