"""Measures against thresholds, as monitoring plugins say them. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """A plugin's exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_WORSE = (State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL)


class Measure(NamedTuple):
    """`value` None: there is none, `text` says why, and `state` is what that means."""

    service: str
    node: str
    value: float | None
    state: State = State.OK
    text: str = ""


def judged(measure: Measure, warn: float, crit: float) -> Measure:
    """Its state by its value, where it has one: from `warn` on 1, from `crit` on 2."""
    if measure.value is None:
        return measure
    state = State.CRITICAL if measure.value >= crit else State.WARNING if measure.value >= warn else State.OK
    return measure._replace(state=state)


def worst(measures: Sequence[Measure]) -> State:
    """Critical before unknown, which is before warning. Nothing measured: unknown."""
    return max((one.state for one in measures), key=_WORSE.index, default=State.UNKNOWN)


def nagios(check: str, unit: str, measures: Sequence[Measure], warn: float, crit: float) -> str:
    """One line: the state, who is not well, and the performance data."""
    state = worst(measures)
    bad = [f"{one.service} {one.node}: {_said(one, unit)}" for one in measures if one.state is not State.OK]
    shown = "; ".join(bad) or (f"{len(measures)} measured" if measures else "nothing to measure")
    data = [f"'{_label(one)}'={one.value:g}{unit};{warn:g};{crit:g}" for one in measures if one.value is not None]
    line = f"PEGAFLOW {check.upper()} {state.name} - {shown}".replace("|", "/").replace("\n", " ")
    return f"{line} | {' '.join(data)}" if data else line


def _said(measure: Measure, unit: str) -> str:
    return measure.text if measure.value is None else f"{measure.value:g}{unit}"


def _label(measure: Measure) -> str:
    return f"{measure.service} {measure.node}".replace("'", "").replace("=", "")


def prometheus(check: str, unit: str, measures: Sequence[Measure]) -> str:
    """Text for a textfile collector: the state of each, and its value."""
    name = f"pegaflow_check_{check}"
    suffix = {"ms": "_milliseconds", "%": "_percent", "": "_pages"}[unit]
    lines = [f"# HELP {name}_state 0 ok, 1 warning, 2 critical, 3 unknown", f"# TYPE {name}_state gauge"]
    lines += [f"{name}_state{_labels(one)} {int(one.state)}" for one in measures]
    valued = [one for one in measures if one.value is not None]
    if valued:
        lines += [f"# HELP {name}{suffix} what was measured", f"# TYPE {name}{suffix} gauge"]
        lines += [f"{name}{suffix}{_labels(one)} {one.value:g}" for one in valued]
    return "\n".join(lines) + "\n"


def _labels(measure: Measure) -> str:
    pairs = (("service", measure.service), ("node", measure.node))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
