"""Why a service does not start, and what its supervisor is to do about it."""

from __future__ import annotations

from typing import Final

from pegaflow.common.wire.errors import ErrorCode

EX_TEMPFAIL: Final = 75
EX_CONFIG: Final = 78
_OF_THE_CONFIGURATION: Final = {
    ErrorCode.BAD_CONFIG,
    ErrorCode.BAD_ENDPOINT,
    ErrorCode.PLAINTEXT_NETWORK,
    ErrorCode.UNSAFE_PATH,
}
"""Codes of a start that fails in the same way until somebody has changed something."""


class StartError(Exception):
    """The service cannot start. `exit_code`: 78 if the configuration is to be changed, 75 if it may start later (port in use)."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    @property
    def exit_code(self) -> int:
        return EX_CONFIG if self.code in _OF_THE_CONFIGURATION else EX_TEMPFAIL
