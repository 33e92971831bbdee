"""What the doctor says."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """`error`: something does not work, or will not. `warning`: it works, but worse or less safely than it could."""

    ERROR = "error"
    WARNING = "warning"


class Finding(NamedTuple):
    """`code` is stable, `where` the service or engine, `what` the values that do not fit, `todo` what to do about it."""

    severity: Severity
    code: str
    where: str
    what: str
    todo: str


def error(code: str, where: str, what: str, todo: str) -> Finding:
    return Finding(Severity.ERROR, code, where, what, todo)


def warning(code: str, where: str, what: str, todo: str) -> Finding:
    return Finding(Severity.WARNING, code, where, what, todo)
