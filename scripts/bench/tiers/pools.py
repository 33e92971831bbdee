"""How large a pool has to be."""

from __future__ import annotations

SLAB = 64 << 20


def pool_bytes(content: int) -> int:
    """Room for pages of so many bytes without an eviction, in whole slabs, some of them cut for other sizes."""
    return (content * 9 // 8 // SLAB + 3) * SLAB
