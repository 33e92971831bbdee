"""Pages of one engine against pages of the same names that another engine computed, number by number.

Which numbers of a page belong to which row of its block depends on vLLM's kernels (keys may be packed across rows), so it is
found out instead of assumed: the tail pages of one prompt, cut after each row, show what each row adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .stored import Pages, StoredPage

TOLERANCE = 1e-3
"""Of a page's largest number. Two correct float32 computations of one row, in batches of different shape, differ by far less;
two different rows by about as much as the numbers are large."""

Numbers = npt.NDArray[np.float32]


def numbers(page: StoredPage) -> Numbers:
    return np.frombuffer(page.data, np.float32)


@dataclass(frozen=True, slots=True)
class Rows:
    """`row[i]`: the row of the block that number i of a page belongs to."""

    row: npt.NDArray[np.int64]

    @classmethod
    def of(cls, probes: list[tuple[list[StoredPage], StoredPage]]) -> Rows:
        """From probes: the pages of a prompt's first 1, 2, … rows, computed in this order, and the full block's page.

        A block may hold rows of an earlier probe, and a number in them may be like the right one by accident; not in all probes.
        """
        row = np.max([_first_seen(tails, full) for tails, full in probes], axis=0)
        rows = probes[0][1].rows
        counts = np.bincount(row, minlength=rows)
        assert (counts == row.size // rows).all(), f"rows do not have the same size: {counts}"
        return cls(row)


def _first_seen(tails: list[StoredPage], full: StoredPage) -> npt.NDArray[np.int64]:
    whole = numbers(full)
    row = np.full(whole.size, full.rows - 1)
    for tail in reversed(tails):
        row[np.abs(numbers(tail) - whole) <= TOLERANCE * np.abs(whole).max()] = tail.rows - 1
    return row


@dataclass(slots=True)
class Verdict:
    """`wrong`: names and rows of pages that differ. `worst`: largest difference among the others, relative."""

    compared: int = 0
    tails: int = 0
    wrong: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    worst: float = 0.0


def compare(pages: Pages, truth: Pages, rows: Rows) -> Verdict:
    """All of `pages`. Raises KeyError for one that `truth` lacks."""
    verdict = Verdict()
    for name, page in pages.items():
        right = truth[name]
        assert right.rows == page.rows, (name, page.rows, right.rows)
        valid = rows.row < page.rows
        ours, theirs = numbers(page)[valid], numbers(right)[valid]
        difference = np.abs(ours - theirs) / np.abs(theirs).max()
        verdict.compared += 1
        verdict.tails += page.rows < int(rows.row.max()) + 1
        bad = ~(difference <= TOLERANCE)  # a NaN is wrong too
        if bad.any():
            verdict.wrong[name] = sorted(set(rows.row[valid][bad].tolist()))
        else:
            verdict.worst = max(verdict.worst, float(difference.max()))
    return verdict


def torn(page: StoredPage, other: StoredPage, rows: Rows, row: int) -> StoredPage:
    """`page` with one row of another page in it."""
    mixed = np.where(rows.row == row, numbers(other), numbers(page))
    return StoredPage(page.rows, mixed.astype(np.float32).tobytes())
