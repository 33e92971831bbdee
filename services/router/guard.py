"""Who may send requests, and how many at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pegaflow.services.router.admission import Admission
from pegaflow.services.router.api_keys import ApiKeys, bearer
from pegaflow.services.router.client_headers import RawHeaders, values
from pegaflow.services.router.openai import Refused

ANYBODY: Final = "anybody"
"""The name of all clients where there are no keys."""
RETRY_AFTER_SECONDS: Final = "1"


class Guard:
    """Without a `keys_file` everybody may come in, and counts as one client."""

    def __init__(self, keys_file: Path | None, limit: int) -> None:
        """Raises BadKeys."""
        self._keys = None if keys_file is None else ApiKeys.read(keys_file)
        self._limit = limit
        self.admission = Admission(limit)

    @property
    def keyed(self) -> bool:
        return self._keys is not None

    @property
    def names(self) -> frozenset[str]:
        return frozenset({ANYBODY}) if self._keys is None else self._keys.names

    def become(self, other: Guard) -> None:
        """Keys and limit of another guard, from the next request on; what is open goes on."""
        self._keys, self._limit = other._keys, other._limit
        self.admission.limit = other._limit

    def name_of(self, headers: RawHeaders) -> str:
        """Whose request this is. Raises Refused (401)."""
        if self._keys is None:
            return ANYBODY
        key = bearer(values(headers, "authorization"))
        name = None if key is None else self._keys.name_of(key)
        if name is not None:
            return name
        message = "the API key is not known" if key is not None else "an API key is needed, as Authorization: Bearer KEY"
        raise Refused(message, code="invalid_api_key", status=401, headers={"WWW-Authenticate": "Bearer"})

    def enter(self, name: str) -> None:
        """Count a request as open, until `admission.leave`. Raises Refused (429)."""
        if not self.admission.enter(name):
            raise Refused(
                f"{self._limit} requests of this API key are open, which is its limit",
                code="rate_limit_exceeded",
                kind="rate_limit_error",
                status=429,
                headers={"Retry-After": RETRY_AFTER_SECONDS},
            )
