"""A copy of a catalogue in a dictionary, entry by entry: what every store has to amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pegaflow.common.bus.clone import Clone
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.wire.digest import DIGEST_BYTES, DIGEST_MOD, entry_digest
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, CatalogueBeat


class MappedGeneration:
    def __init__(self) -> None:
        self.entries: dict[bytes, int] = {}
        self.counts = [0] * 256
        self.is_live = self.is_void = False

    def put(self, keys: Collection[bytes], entries: Collection[int]) -> None:
        assert not self.is_void, "written after its end"
        for key, entry in zip(keys, entries, strict=True):
            self.entries.pop(key, None)
            if entry_state(entry) != GONE:
                self.entries[key] = entry
        states = Counter(map(entry_state, self.entries.values()))
        self.counts = [states[state] for state in range(256)]

    def live(self) -> None:
        assert not self.is_void
        self.is_live = True

    def void(self) -> None:
        self.is_live, self.is_void = False, True

    @property
    def digest(self) -> bytes:
        total = sum(entry_digest(key, entry & 0xFF, entry >> 8 & 0xFF, entry >> 16) for key, entry in self.entries.items())
        return (total % DIGEST_MOD).to_bytes(DIGEST_BYTES, "little")

    def entries_of(self, keys: Collection[bytes]) -> list[int]:
        return [self.entries.get(key, 0) for key in keys]

    def agrees(self, beat: CatalogueBeat) -> bool:
        return beat.digest == self.digest and (beat.pending, beat.sealed) == (self.counts[PENDING], self.counts[SEALED])

    def validate(self) -> None:
        assert not self.is_void


def live_entries(clone: Clone) -> dict[bytes, int]:
    """What readers see."""
    live = clone._live
    if live is None:
        return {}
    assert isinstance(live, MappedGeneration) and live.is_live
    return live.entries
