"""Who may take a snapshot now, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pegaflow.common.bus.clone import Clone

SYNCS_AT_ONCE = 4


class SyncGate:
    """At most `places` snapshots at once over all clones that share it; who finds no place waits, first come, first served.

    A restarted subscriber hears of all tiers in the same moment: chunks of all of them together would keep its loop from
    everything else for seconds, and would be late.
    """

    def __init__(self, places: int = SYNCS_AT_ONCE) -> None:
        self._places = places
        self._inside: set[Clone] = set()
        self._waiting: dict[Clone, None] = {}

    def take(self, clone: Clone) -> bool:
        """Whether it may begin now; if not, it is in line from now on."""
        ahead = next(iter(self._waiting), clone)
        if len(self._inside) >= self._places or ahead is not clone:
            self._waiting[clone] = None
            return False
        self._waiting.pop(clone, None)
        self._inside.add(clone)
        return True

    def give(self, clone: Clone) -> None:
        """It has ended, or does not want to begin any more."""
        self._inside.discard(clone)
        self._waiting.pop(clone, None)

    def next(self) -> Clone | None:
        """Whose turn it is; its `tick` begins."""
        return next(iter(self._waiting), None) if len(self._inside) < self._places else None
