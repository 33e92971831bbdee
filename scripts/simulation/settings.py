"""What the command line may say: names of studies and of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from simulation.cluster import Setup
from simulation.studies import STUDIES


def check(studies: Sequence[str]) -> None:
    """Raises SystemExit with `unknown_study`."""
    unknown = set(studies) - STUDIES.keys() - {"validate"}
    if unknown:
        raise SystemExit(f"unknown_study: {', '.join(sorted(unknown))} is none of {', '.join(STUDIES)}, validate")


def changed(setup: Setup, text: str) -> Setup:
    """`text` is NAME=VALUE. Raises SystemExit with `bad_setting`."""
    name, _, value = text.partition("=")
    for part in ("hardware", "model", "load", ""):
        holder: Any = getattr(setup, part) if part else setup
        found = {field.name for field in fields(holder)}
        if name in found and isinstance(old := getattr(holder, name), int | float):
            try:
                new = replace(holder, **{name: type(old)(value)})
            except ValueError:
                break
            return replace(setup, **{part: new}) if part else new
    raise SystemExit(f"bad_setting: {text}: a name out of scripts/simulation/figures.py, =, and a number")
