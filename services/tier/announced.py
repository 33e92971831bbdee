"""What the catalogue hears of a tier, pure: key → state, level and size; deltas, digest, and copies of all of it, part by part.

part │ part │ part │ …      a key is in the part that its last bytes name
         ▲ copied one after the other, each as it was when the copy began: what changes meanwhile is remembered first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import DIGEST_MOD, entry_digest
from pegaflow.common.wire.messages.catalogue import GONE, MEMORY, SEALED, CatalogueBeat, Delta

Entry = tuple[int, int, int]
"""State, level, size."""

PARTS = 1024  # some thousand of a million keys in each
FOLD = 4096
"""Changed keys that the digest does not have yet, at most: a beat never waits for all of a busy half second."""
_GONE = (GONE, MEMORY, 0)


class Past:
    """All entries as they were when this was made, for as long as `Announced` is told to remember."""

    def __init__(self) -> None:
        self.before: dict[int, dict[bytes, Entry | None]] = {}


class Announced:
    """`count` entries, of which `sealed` and `pending`; `widths`: how many keys have which length; `head`: of the deltas."""

    def __init__(self) -> None:
        self._parts: list[dict[bytes, Entry]] = [{} for _ in range(PARTS)]
        self._pasts: list[Past] = []
        self._changes: dict[bytes, Entry] = {}
        self._digest = 0
        self._undigested: dict[bytes, Entry | None] = {}  # what the digest has of keys that have changed since
        self.widths: Counter[int] = Counter()
        self.sealed = 0
        self.pending = 0
        self.head = 0

    @property
    def count(self) -> int:
        return self.sealed + self.pending

    def get(self, key: bytes) -> Entry | None:
        return self._parts[_part(key)].get(key)

    def set(self, key: bytes, entry: Entry | None) -> None:
        """None: it is not told of any more."""
        at = key[-1] << 2 | key[-2] & 3
        part = self._parts[at]
        known = part.get(key)
        if known == entry:
            return
        # PERF: each page comes here three times in its life, so this is one piece and counts only what changes.
        if self._pasts:
            for past in self._pasts:
                past.before.setdefault(at, {}).setdefault(key, known)
        self._undigested.setdefault(key, known)
        if known is None:
            self.widths[len(key)] += 1
        elif known[0] == SEALED:
            self.sealed -= 1
        else:
            self.pending -= 1
        if entry is None:
            del part[key]
            self._changes[key] = _GONE
            self.widths[len(key)] -= 1
            return
        part[key] = self._changes[key] = entry
        if entry[0] == SEALED:
            self.sealed += 1
        else:
            self.pending += 1

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """All, as they are now. Nothing changes meanwhile."""
        for part in filter(None, self._parts):
            yield from part.items()

    # --- told --------------------------------------------------------------------------------------------------------

    def flush(self) -> tuple[list[bytes], list[Delta]]:
        """Keys that have changed since the last time, and what is told of it, coalesced per key."""
        if not self._changes:
            return [], []
        changed = list(self._changes)
        by_width: dict[int, list[bytes]] = {}
        for key in changed:
            by_width.setdefault(len(key), []).append(key)
        deltas = []
        for keys in by_width.values():
            rows = [self._changes[key] for key in keys]
            states, levels = bytes(row[0] for row in rows), bytes(row[1] for row in rows)
            deltas.append(Delta(keys, states, levels, u32s(min(row[2], 0xFFFFFFFF) for row in rows)))
        self.head += len(deltas)
        self._changes.clear()
        if (more := len(self._undigested) - FOLD) > 0:
            self._fold(more)
        return changed, deltas

    def beat(self) -> CatalogueBeat:
        self._fold(len(self._undigested))
        return CatalogueBeat(self._digest.to_bytes(16, "little"), self.pending, self.sealed)

    def _fold(self, count: int) -> None:
        """Brings the digest up to date with keys that have changed, those first that changed first."""
        # PERF: a page that was promised and sealed since the last time is hashed once; so the latest wait.
        undigested, parts = self._undigested, self._parts
        for key in list(islice(undigested, count)):
            known, entry = undigested.pop(key), parts[_part(key)].get(key)
            if entry != known:
                more = entry_digest(key, *entry) if entry is not None else 0
                less = entry_digest(key, *known) if known is not None else 0
                self._digest = (self._digest + more - less) % DIGEST_MOD

    # --- as it was ---------------------------------------------------------------------------------------------------

    def sizes(self) -> list[int]:
        """Of the parts."""
        return list(map(len, self._parts))

    def remember(self) -> Past:
        """From now on it is known how everything was at this moment, until `forget`."""
        past = Past()
        self._pasts.append(past)
        return past

    def forget(self, past: Past) -> None:
        self._pasts = [other for other in self._pasts if other is not past]

    def part(self, past: Past, at: int) -> dict[bytes, Entry]:
        """One part as it was. The caller does not change it."""
        part, before = self._parts[at], past.before.get(at)
        if before is None:
            return part
        return {key: entry for key, entry in {**part, **before}.items() if entry is not None}

    # --- checks ------------------------------------------------------------------------------------------------------

    def validate(self, entries: dict[bytes, Entry]) -> None:
        """`entries`: what is there to be told of."""
        assert dict(self.items()) == entries
        assert self.sealed == sum(entry[0] == SEALED for entry in entries.values())
        assert self.count == len(entries)
        assert +self.widths == Counter(map(len, entries))
        assert all(self.get(key) == entry for key, entry in entries.items())
        total = sum(entry_digest(key, *entry) for key, entry in entries.items()) % DIGEST_MOD
        assert total.to_bytes(16, "little") == self.beat().digest


def _part(key: bytes) -> int:
    return key[-1] << 2 | key[-2] & 3
