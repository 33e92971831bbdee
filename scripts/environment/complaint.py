"""The one exception of scripts: something that its user has to change."""

from __future__ import annotations

from typing import Final

EX_UNAVAILABLE: Final = 69
"""sysexits.h: what the script needs is not there."""


class Complaint(Exception):
    """Shown as `prog: code: text`, without a stack trace. `code` is stable, `text` says what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
