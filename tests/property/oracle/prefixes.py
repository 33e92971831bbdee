"""Every token prefix that occurs, numbered. The number is the stamp of the KV row of the prefix's last token.

A row's KV depends on its own token and on all before it, and on nothing else; so two rows may stand for each other
exactly if their stamps are equal. A block's hash is the stamp of its last row, which makes hashes free of collisions
and tells the oracle what the page of a key has to hold.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 4
RUBBISH = -1
"""A row that nobody computed, or that was computed on top of such a row."""
PLAIN, SALTED, ADAPTED = 0, 1, 2
"""Stamps of the empty prefixes: a cache salt and a LoRA keep requests apart from all others."""
WRONG_TOKEN = 99
"""A draft that the model would never say."""
SPLITS = (1 << 30, 6, 8)
"""Where each text leaves the common beginning: never, within a block, at a block's end."""


def token(text: int, position: int) -> int:
    """The model is greedy and knows `len(SPLITS)` texts: prompts are their beginnings, answers go on with them."""
    return position * 3 % 5 + (10 * text if position >= SPLITS[text] else 0)


class Prefixes:
    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._parents = [RUBBISH] * 3
        self._lengths = [0] * 3
        self._pages: dict[int, list[int]] = {}

    def after(self, stamp: int, token_id: int) -> int:
        """Stamp of the row that is computed from `token_id` on top of the row with `stamp`."""
        if stamp == RUBBISH:
            return RUBBISH
        number = self._numbers.get((stamp, token_id))
        if number is None:
            number = self._numbers[stamp, token_id] = len(self._parents)
            self._parents.append(stamp)
            self._lengths.append(self._lengths[stamp] + 1)
        return number

    def length(self, stamp: int) -> int:
        """Tokens of the prefix."""
        return self._lengths[stamp]

    def page(self, stamp: int) -> list[int]:
        """Rows of the page that ends with this row: as many as the tail of its prefix has, or a full block."""
        if (known := self._pages.get(stamp)) is not None:
            return known
        rows: list[int] = []
        last = stamp
        for _ in range((self._lengths[stamp] - 1) % BLOCK + 1):
            rows.append(stamp)
            stamp = self._parents[stamp]
        rows.reverse()
        self._pages[last] = rows
        return rows

    def tail_hash(self, parent: bytes | None, token_ids: Sequence[int]) -> bytes:
        """vLLM's hash of a part of a block; without a parent nothing but the ids tells whose it is."""
        stamp = PLAIN if parent is None else unhash(parent)
        for token_id in token_ids:
            stamp = self.after(stamp, token_id)
        return as_hash(stamp)


def as_hash(stamp: int) -> bytes:
    return stamp.to_bytes(16, "big")


def unhash(content: bytes) -> int:
    return int.from_bytes(content, "big")
