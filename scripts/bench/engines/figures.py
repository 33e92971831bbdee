"""The arithmetic of the engine benchmark: percentiles, ratios within pairs, steps by kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between ranks, so that p99 of few values is not simply the largest. Raises ValueError without values."""
    if not values:
        raise ValueError("a percentile of nothing")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Spread(NamedTuple):
    """Median of the ratios of pairs, their quartiles, and how many there were."""

    median: float
    low: float
    high: float
    pairs: int


def paired(these: Sequence[float], those: Sequence[float]) -> Spread:
    """`these` over `those`, pair by pair. Raises ValueError for unequal lengths, no pair, or a value that is not positive."""
    if len(these) != len(those):
        raise ValueError(f"{len(these)} values against {len(those)}")
    if any(value <= 0 for value in (*these, *those)):
        raise ValueError("only positive values have a ratio")
    ratios = [this / that for this, that in zip(these, those, strict=True)]
    return Spread(percentile(ratios, 0.5), percentile(ratios, 0.25), percentile(ratios, 0.75), len(ratios))


def moved(before: Mapping[str, float], after: Mapping[str, float], most: float) -> dict[str, float]:
    """By how much each has grown, of those that have by more than `most`."""
    grown = {name: value - before[name] for name, value in after.items()}
    return {name: by for name, by in grown.items() if by > most}


class Step(NamedTuple):
    """One step of an engine core as its scheduler saw it. Times in seconds of the monotonic clock.

    `scheduled`: end of `schedule`. `prefill`: prompt positions computed; `decode`: requests with one token of their
    answer. `loading`: requests whose pages were being loaded while the step ran.
    """

    start: float
    scheduled: float
    end: float
    prefill: int
    decode: int
    loading: int

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3


class Kind(StrEnum):
    """What a step did, apart from the bystanders' tokens."""

    QUIET = "quiet"
    AFTER_PREFILL = "after prefill"
    LOADING = "loading"
    PREFILL = "prefill"


def by_kind(steps: Iterable[Step], bystanders: int) -> dict[Kind, list[float]]:
    """Milliseconds of the steps in which exactly `bystanders` requests decode, by kind.

    AFTER_PREFILL is the decode step behind one that computed a prompt: with a connector that prompt's pages are copied
    meanwhile, without one nothing is; so the two can be compared. PREFILL steps differ by their size; see `prefills`.
    """
    found: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    before: Step | None = None
    for step in steps:
        if step.decode == bystanders:
            if step.prefill:
                kind = Kind.PREFILL
            elif step.loading:
                kind = Kind.LOADING
            elif before is not None and before.prefill > 1:
                kind = Kind.AFTER_PREFILL
            else:
                kind = Kind.QUIET
            found[kind].append(step.ms)
        before = step
    return found
