"""From columns of offsets and lengths to descriptor arrays: checked against both pools, in order, adjacent pages joined.

Runs in the mover process only (numpy). A wrong address never reaches NIXL: over TCP a bad remote page crashes its owner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.uint64]


class BadDescriptor(ValueError):
    """Offsets or lengths that do not fit the pools."""


class Region(NamedTuple):
    """A registered pool: virtual address in its owner's process, size in bytes."""

    base: int
    size: int


class Descriptors(NamedTuple):
    """Two [n, 3] uint64 arrays (address, length, device 0); row i of one is copied to row i of the other."""

    local: Column
    remote: Column
    pages: int
    bytes: int


def build(local: Region, remote: Region, local_column: bytes, remote_column: bytes, length_column: bytes) -> Descriptors:
    """Columns: u64 offsets, u64 offsets, u32 lengths. Raises BadDescriptor before anything is copied.

    Pages are sorted by destination; neighbours that touch on both sides become one descriptor. Destinations must not
    overlap, sources may.
    """
    if len(local_column) % 8 or len(length_column) * 2 != len(local_column) or len(remote_column) != len(local_column):
        raise BadDescriptor(
            f"columns of {len(local_column)}, {len(remote_column)} and {len(length_column)} bytes do not belong together"
        )
    here = np.frombuffer(local_column, dtype="<u8")
    there = np.frombuffer(remote_column, dtype="<u8")
    lengths = np.frombuffer(length_column, dtype="<u4").astype(np.uint64)
    if not len(here):
        raise BadDescriptor("a READ of no pages")
    if not lengths.all():
        raise BadDescriptor("a page of 0 bytes")
    _inside("local", here, lengths, local.size)
    _inside("remote", there, lengths, remote.size)
    if (here[1:] < here[:-1]).any():
        order = np.argsort(here, kind="stable")
        here, there, lengths = here[order], there[order], lengths[order]
    ends = here + lengths
    if (ends[:-1] > here[1:]).any():
        raise BadDescriptor("destinations overlap")
    joined = (ends[:-1] == here[1:]) & (there[:-1] + lengths[:-1] == there[1:])
    firsts = np.flatnonzero(np.concatenate(([True], ~joined)))
    spans = np.add.reduceat(lengths, firsts)
    return Descriptors(
        _rows(here[firsts], spans, local.base), _rows(there[firsts], spans, remote.base), len(here), int(lengths.sum())
    )


def _inside(which: str, offsets: Column, lengths: Column, size: int) -> None:
    # Written so that nothing can wrap around: a length is compared with the pool before it is subtracted from it.
    total = np.uint64(size)
    if (lengths > total).any() or (offsets > total - lengths).any():
        raise BadDescriptor(f"a page outside the {which} pool of {size} bytes")


def _rows(offsets: Column, spans: Column, base: int) -> Column:
    rows = np.zeros((len(offsets), 3), dtype=np.uint64)
    rows[:, 0] = offsets + np.uint64(base)
    rows[:, 1] = spans
    return rows
