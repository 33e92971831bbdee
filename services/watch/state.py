"""Whom to restart, pure: a program that runs and is not alive, and has not been for a while.

    RUNNING, new pid ──▶ starting ──first "alive"──▶ alive ──failure──▶ failing ──N within T──▶ restart ──▶ starting
                            │ grace over, never alive: each failure counts        └ "alive": all failures forgotten

Alive is what `/health` says; readiness plays no part: who waits for a peer is well. Each restart makes the next one of that
program wait longer, so that what cannot live is not restarted for ever; time spent alive makes up for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Rules:
    """`failures` within `within_s` are a reason to restart. `grace_s`: for a start, until it was alive once.

    `pause_s`: after a restart no other one of that program for so long; doubled by each, up to `pause_max_s`. Alive for
    `pause_max_s` since its last restart, a program begins anew with `pause_s`.
    """

    failures: int = 3
    within_s: float = 60.0
    grace_s: float = 600.0
    pause_s: float = 60.0
    pause_max_s: float = 900.0


class Restart(NamedTuple):
    """Kill this process; its supervisor starts it again. `failures`: why, oldest first. `pause_s`: until it may be done again."""

    name: str
    pid: int
    failures: tuple[str, ...]
    restarts: int
    pause_s: float


class Held(NamedTuple):
    """It would be restarted, but was so a short while ago. Said once per pause."""

    name: str
    pid: int
    failures: tuple[str, ...]
    left_s: float


@dataclass(slots=True)
class _Program:
    pid: int = 0
    since: float = 0.0
    alive: bool = False
    failures: deque[tuple[float, str]] = field(default_factory=deque)
    restarts: int = 0
    restarted_at: float = 0.0
    pause_s: float = 0.0
    told: bool = False


class Watch:
    """The programs by name. Times are seconds of one clock."""

    def __init__(self, names: Iterable[str], rules: Rules) -> None:
        self._rules = rules
        self._programs = {name: _Program() for name in names}

    @property
    def restarts(self) -> dict[str, int]:
        return {name: program.restarts for name, program in self._programs.items()}

    def seen(self, name: str, pid: int, now: float) -> None:
        """The supervisor says: it runs as `pid`. 0: it does not (stopped, starting, given up), which is not our business."""
        program = self._programs[name]
        if program.pid != pid:
            program.pid, program.since, program.alive = pid, now, False
            program.failures.clear()

    def answered(self, name: str, pid: int, failure: str, now: float) -> Restart | Held | None:
        """What `/health` said of the process that ran as `pid` when it was asked; `failure` empty: alive."""
        program, rules = self._programs[name], self._rules
        if not pid or program.pid != pid:
            return None
        if not failure:
            program.alive = True
            program.failures.clear()
            if program.restarts and now - max(program.restarted_at, program.since) >= rules.pause_max_s:
                program.pause_s = 0.0
            return None
        if not program.alive and now - program.since < rules.grace_s:
            return None
        program.failures.append((now, failure))
        while program.failures[0][0] <= now - rules.within_s or len(program.failures) > rules.failures:
            program.failures.popleft()
        if len(program.failures) < rules.failures:
            return None
        why = tuple(text for _, text in program.failures)
        left = program.restarted_at + program.pause_s - now
        if program.restarts and left > 0:
            if program.told:
                return None
            program.told = True
            return Held(name, pid, why, left)
        program.pause_s = min(rules.pause_max_s, 2 * program.pause_s or rules.pause_s)
        program.restarts += 1
        program.restarted_at, program.told = now, False
        program.failures.clear()
        program.alive, program.since = False, now  # whoever kills it may fail to: then it has its grace once more
        return Restart(name, pid, why, program.restarts, program.pause_s)

    def validate(self) -> None:
        for program in self._programs.values():
            assert len(program.failures) <= self._rules.failures
            assert program.pause_s <= self._rules.pause_max_s
            times = [at for at, _ in program.failures]
            assert times == sorted(times)
            assert program.pid or not program.failures
