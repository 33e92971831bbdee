"""What each namespace may have of the pool, pure. A namespace is a fingerprint: one model in one layout.

    quota   never more than that: configured per namespace, else a fraction of the pool
    share   the backed pool over the namespaces with an attached engine, at most the quota; nothing for one without an engine

Who is below its share may take from those above theirs, never the reverse; so a model that is asked for rarely keeps what it has
up to its share, and what nobody's engine can use goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.slots import SlotAllocator


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """`quotas`: fingerprint → bytes; the rest are fractions of the pool. `evict_high` 1: nothing is evicted ahead of need."""

    policy: str = "lru"
    quotas: Mapping[bytes, int] = field(default_factory=dict)
    quota_default: float = 1.0
    evict_high: float = 1.0
    evict_low: float = 1.0
    keep_share: float = 0.25


@dataclass(slots=True, eq=False)
class Namespace:
    """`quota`, `used` and `kept` count granules; `pages` every page that has slots; the other two are counters."""

    name: bytes
    quota: int
    used: int = 0
    kept: int = 0
    pages: int = 0
    evicted: int = 0
    refused: int = 0


class Shares:
    """Namespaces by name, and what is theirs. `active`: those with an attached engine; the tier sets it."""

    def __init__(self, allocator: SlotAllocator, options: SpaceOptions) -> None:
        self._allocator, self._options = allocator, options
        self.by_name: dict[bytes, Namespace] = {}
        self._active: frozenset[bytes] = frozenset()

    @property
    def active(self) -> frozenset[bytes]:
        return self._active

    @active.setter
    def active(self, names: frozenset[bytes]) -> None:
        self._active = names
        for space in list(self.by_name.values()):
            self.forget(space)

    def retune(self, options: SpaceOptions) -> None:
        """New quotas. A namespace above its own gives up pages when it next saves one."""
        self._options = options
        for space in self.by_name.values():
            space.quota = self._quota(space.name)

    def of(self, name: bytes) -> Namespace:
        space = self.by_name.get(name)
        if space is None:
            space = self.by_name[name] = Namespace(name, self._quota(name))
        return space

    def forget(self, space: Namespace) -> None:
        """If nothing is left of it."""
        if not space.pages and space.name not in self._active:
            self.by_name.pop(space.name, None)

    def _quota(self, name: bytes) -> int:
        size = self._options.quotas.get(name)
        return int(self._options.quota_default * self._allocator.total) if size is None else size // GRANULE

    def share(self, space: Namespace) -> int:
        """Granules that nobody may take from it."""
        if space.name not in self._active:
            return 0
        return min(space.quota, self._allocator.backed // len(self._active))

    def view(self) -> dict[str, dict[str, int]]:
        """For the dump: usage in bytes, by namespace."""
        return {
            space.name.hex(): {
                "pages": space.pages,
                "used_bytes": space.used * GRANULE,
                "quota_bytes": space.quota * GRANULE,
                "share_bytes": self.share(space) * GRANULE,
                "kept_bytes": space.kept * GRANULE,
                "evicted": space.evicted,
                "refused": space.refused,
            }
            for space in self.by_name.values()
        }

    def above(self, space: Namespace) -> int:
        """Granules that it has above its share; below 0: that it is short of it."""
        return space.used - self.share(space)
