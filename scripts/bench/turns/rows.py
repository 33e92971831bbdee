"""How runs become rows of the tables: latencies by turn, totals, hits by level, CPU, ratios. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .figures import Latencies, Slo, Spread, goodput, latencies, losses, share_within
from .heard import Heard
from .hits import by_level
from .record import Run
from .shape import Shape

ALL: Final = "all"
MORE_IS_BETTER: Final = ("answer ids/s", "goodput")
Row = dict[str, Any]


def head(run: Run) -> Row:
    return {"round": run.round, "loop": str(run.arrival), "configuration": str(run.kind)}


def turn_rows(run: Run, shape: Shape) -> list[Row]:
    """A row for each turn, and one for all of them."""
    good = run.good(shape.answer)
    rows = []
    for turn in range(shape.turns):
        if of_turn := [one for one in good if one.turn == turn]:
            rows.append(_latency_row(run, str(turn + 1), shape.prompt(turn), of_turn))
    return [*rows, _latency_row(run, ALL, "", good)] if good else rows


def _latency_row(run: Run, turn: str, prompt: Any, heard: Sequence[Heard]) -> Row:
    row = head(run) | {"turn": turn, "prompt": prompt, "n": len(heard)}
    for name, values in latencies(heard)._asdict().items():
        for share, value in values._asdict().items():
            if name != "whole" or share != "p90":
                row[f"{name} {share}"] = round(value, 1)
    return row


def total_row(run: Run, shape: Shape, slo: Slo, like: Mapping[tuple[int, int], tuple[int, ...]]) -> Row:
    """`like`: the answers that another configuration gave, by session and turn."""
    good = run.good(shape.answer)
    row = head(run) | {"requests": len(run.heard), "failed": len(run.heard) - len(good), "seconds": run.seconds}
    row |= {"requests/s": len(good) / run.seconds, "answer ids/s": answer_rate(run, shape)}
    row |= {"goodput": goodput(good, run.seconds, slo), "within SLO": share_within(good, shape.requests, slo)}
    row["same answers"] = sum(like.get((one.session, one.turn)) == one.ids for one in good)
    row["merged ids"] = sum(one.merged for one in good)
    row["sent late"] = sum(one.late > 0 for one in good if one.turn)
    row["plans"] = ", ".join(sorted({one.plan or "no router" for one in good}))
    row["client's share of a core"] = run.cpu["client"] / run.seconds
    row["left behind"] = ", ".join(run.left) or "nothing"
    return row


def answer_rate(run: Run, shape: Shape) -> float:
    return len(run.good(shape.answer)) * shape.answer / run.seconds


def alone_row(run: Run, shape: Shape) -> Row:
    """A first prompt with nobody beside it."""
    good = run.good_alone(shape.answer)
    found = latencies(good)
    return head(run) | {"alone: n": len(good), "ttft p50": found.ttft.p50, "tpot p50": found.tpot.p50}


def hit_rows(run: Run) -> list[Row]:
    return [head(run) | row for row in by_level(run.growth)]


def again_row(run: Run, shape: Shape) -> Row:
    """Positions of the prompts that were asked: all, and those that nobody had said before; then what was computed of them.

    `recomputed`: by P or mixed engines, above what was new. Also where everything fits that is more than none: a block that was
    not full is computed again, and so is an answer's last id; on P all of an answer that it did not get from D's tier.
    """
    new = sum(shape.piece(one.turn) for one in run.heard)
    row = head(run) | {"positions of prompts": sum(one.prompt for one in run.heard), "new": new}
    row |= {"recomputed": run.growth.prefilled - new, "decode positions computed": run.growth.decode_positions}
    return row | {"pages evicted": run.growth.evicted, "preempted": run.growth.preempted}


def cpu_row(run: Run, shape: Shape) -> Row:
    """CPU milliseconds for each id of an answer, its share of the prefill in it, by process with its children."""
    ids = len(run.good(shape.answer)) * shape.answer
    row = head(run) | {"CPU ms per id": sum(run.cpu.values()) * 1e3 / ids}
    return row | {name: round(seconds * 1e3 / ids, 2) for name, seconds in run.cpu.items()}


def ratios(ours: Run, theirs: Run, shape: Shape, slo: Slo) -> dict[str, float]:
    """Ours over theirs, over all turns. Raises ValueError where there is nothing to compare."""
    sides = [run.good(shape.answer) for run in (ours, theirs)]
    mine, other = (latencies(good) for good in sides)
    found = {f"{name} {share}": a / b for name, share, a, b in _pairs(mine, other) if b > 0}
    found["answer ids/s"] = answer_rate(ours, shape) / answer_rate(theirs, shape)
    good, wanted = (goodput(good, run.seconds, slo) for good, run in zip(sides, (ours, theirs), strict=True))
    if wanted:
        found["goodput"] = good / wanted
    found["CPU per id"] = cpu_row(ours, shape)["CPU ms per id"] / cpu_row(theirs, shape)["CPU ms per id"]
    lone, beside = (latencies(run.good_alone(shape.answer)) for run in (ours, theirs))
    return found | {"ttft alone": lone.ttft.p50 / beside.ttft.p50, "tpot alone": lone.tpot.p50 / beside.tpot.p50}


def _pairs(mine: Latencies, other: Latencies) -> list[tuple[str, str, float, float]]:
    return [
        (name, share, getattr(getattr(mine, name), share), getattr(getattr(other, name), share))
        for name in Latencies._fields
        for share in Spread._fields
    ]


def ratio_row(ours: Run, theirs: Run, shape: Shape, slo: Slo) -> Row:
    row: Row = {"round": ours.round, "loop": str(ours.arrival), "ratio": f"{ours.kind}/{theirs.kind}"}
    return row | {name: round(value, 3) for name, value in ratios(ours, theirs, shape, slo).items()}


def loss_rows(ours: Run, theirs: Run, shape: Shape, slo: Slo) -> list[Row]:
    """Where `ours` loses, the worst first; turn by turn for the latencies that have a goal or are most seen."""
    found = losses(ratios(ours, theirs, shape, slo), MORE_IS_BETTER)
    by_turn: dict[str, float] = {}
    for turn in range(shape.turns):
        sides = [[one for one in run.good(shape.answer) if one.turn == turn] for run in (ours, theirs)]
        if all(sides):
            mine, other = (latencies(good) for good in sides)
            by_turn |= {
                f"turn {turn + 1}: {name} {share}": a / b
                for name, share, a, b in _pairs(mine, other)
                if share == "p50" and name != "whole" and b > 0
            }
    found += losses(by_turn, ())
    return [
        {
            "where it loses": str(ours.kind),
            "round": ours.round,
            "loop": str(ours.arrival),
            "against": str(theirs.kind),
            "what": loss.what,
            f"{theirs.kind} = 1": loss.ratio,
        }
        for loss in found
    ]
