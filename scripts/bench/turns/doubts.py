"""What keeps a run's figures from meaning what they should. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .record import Kind, Run
from .shape import Shape

REPLAY = "replay"
"""The router's plan in which D computes the prompt itself."""
Answers = Mapping[tuple[int, int], tuple[int, ...]]
"""Ids by session and turn."""


def answers(run: Run, shape: Shape) -> Answers:
    """The whole ones."""
    return {(one.session, one.turn): one.ids for one in run.good(shape.answer)}


def doubts(run: Run, shape: Shape, like: Answers) -> list[str]:
    """`like`: the answers of the mixed engines. All engines are alike and greedy, so the same prompt has the same answer."""
    found = [*run.failures(shape.answer, shape.requests), *run.noticed]
    if run.left:
        found.append(f"left behind: {run.left}")
    if run.growth.preempted:
        found.append(f"{run.growth.preempted} requests were preempted: an engine's own cache is too small")
    if run.kind is Kind.SMALL and not run.growth.evicted:
        found.append("the tiers evicted nothing")
    if run.kind is not Kind.MIXED:
        found += other_answers(run, shape, like)
    if run.kind is Kind.PD:
        if run.growth.evicted:
            found.append(f"the tiers evicted {run.growth.evicted} pages, though everything should fit")
        if run.growth.decode_positions:
            found.append(f"D computed {run.growth.decode_positions} positions of prompts that P had computed")
        if replays := sum(one.plan == REPLAY for one in (*run.first, *run.alone, *run.heard)):
            found.append(f"{replays} requests were replayed")
    return [f"{run.kind}, {run.arrival} loop, round {run.round}: {why}" for why in found]


def other_answers(run: Run, shape: Shape, like: Answers) -> list[str]:
    """Answers that differ though their prompts do not: the first one of each session. A prompt is all that was said before, so
    behind it, or behind a turn that either side lacks, nothing can be said."""
    found = []
    mine = answers(run, shape)
    for session in range(shape.sessions):
        for turn in range(shape.turns):
            ours, theirs = mine.get((session, turn)), like.get((session, turn))
            if ours is None or theirs is None:
                break
            if ours != theirs:
                at = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
                found.append(f"session {session}, turn {turn}: the same prompt has another answer than mixed, from id {at} on")
                break
    return found


def restarted(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Pids of services before and after. Who was started again has an empty cache, and its counters began anew."""
    return [f"{name} was started again while it was measured" for name, pid in before.items() if after.get(name) != pid]
