"""The arithmetic of the multi-turn benchmark: percentiles, goodput, what is worse than elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.engines.figures import percentile  # so that tests, to which this is another package, find it too

from .heard import Heard

NOTICED: Final = 0.05
"""A difference below it is no loss: two runs of one side differ by as much."""


class Spread(NamedTuple):
    """Milliseconds."""

    p50: float
    p90: float
    p99: float


def spread(seconds: Sequence[float]) -> Spread:
    """Linear between ranks. Raises ValueError without values."""
    return Spread(*(1e3 * percentile(seconds, share) for share in (0.5, 0.9, 0.99)))


class Latencies(NamedTuple):
    """`ttft` and `whole`: to the first and the last token from when the request was due."""

    ttft: Spread
    tpot: Spread
    itl: Spread
    whole: Spread


def latencies(heard: Sequence[Heard]) -> Latencies:
    """Of whole answers. Raises ValueError without any."""
    gaps = [gap for one in heard for gap in one.gaps]
    return Latencies(
        spread([one.ttft for one in heard]),
        spread([one.tpot for one in heard]),
        spread(gaps),
        spread([one.whole for one in heard]),
    )


class Slo(NamedTuple):
    """Seconds."""

    ttft: float
    tpot: float

    def times(self, scale: float) -> Slo:
        return Slo(self.ttft * scale, self.tpot * scale)

    def meets(self, one: Heard) -> bool:
        """Both, or the request counts for nothing."""
        return one.ttft <= self.ttft and one.tpot <= self.tpot


def share_within(heard: Sequence[Heard], asked: int, slo: Slo) -> float:
    """Of the requests `asked`; one without a whole answer is not within."""
    return sum(slo.meets(one) for one in heard) / asked


def goodput(heard: Sequence[Heard], seconds: float, slo: Slo) -> float:
    """Requests a second that met the SLO."""
    return sum(slo.meets(one) for one in heard) / seconds


class Loss(NamedTuple):
    """`ratio`: how much as much, ours over theirs."""

    what: str
    ratio: float


def losses(ratios: Mapping[str, float], more_is_better: Sequence[str]) -> list[Loss]:
    """Where we are worse by more than `NOTICED`, the worst first. `ratios`: ours over theirs."""
    found = []
    for what, ratio in ratios.items():
        worse = 1 / ratio if what in more_is_better and ratio > 0 else float("inf") if what in more_is_better else ratio
        if worse > 1 + NOTICED:
            found.append((worse, Loss(what, ratio)))
    return [loss for _, loss in sorted(found, key=lambda pair: -pair[0])]
