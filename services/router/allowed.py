"""Which hosts and ports the router may open connections to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}


class HostPort(NamedTuple):
    """`host` in lower case, an IPv6 address without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """`host:port` or `[address]:port`. Raises ValueError."""
        text = text.strip()
        try:
            parts = urlsplit(f"//{text}")
            if parts.hostname and parts.port is not None and parts.netloc == text and "@" not in text:
                return cls(parts.hostname, parts.port)
        except ValueError:
            pass
        raise ValueError(f"{text!r} is not host:port")

    @classmethod
    def of_url(cls, url: str) -> HostPort:
        """Raises ValueError for what has no host or no possible port."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url!r} has no host")
        return cls(parts.hostname, parts.port or _PORTS[parts.scheme])

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Allowed:
    """The operator's list; or, where there is none, every engine that was ever admitted."""

    def __init__(self, listed: Iterable[HostPort] = ()) -> None:
        self._listed = frozenset(listed)
        self._admitted: set[HostPort] = set()

    @classmethod
    def of(cls, engines: Iterable[str], listed: Iterable[HostPort]) -> Allowed:
        """Args: base URLs, and the operator's list. Raises ValueError for an engine that is not on it."""
        allowed = cls(listed)
        for url in engines:
            allowed.admit(url)
        return allowed

    def admit(self, url: str) -> None:
        """An engine, by its base URL, is to be connected to. Raises ValueError where it is not on the operator's list."""
        upstream = HostPort.of_url(url)
        if self._listed and upstream not in self._listed:
            raise ValueError(f"{url} is not among allow_upstream: {', '.join(sorted(map(str, self._listed)))}")
        self._admitted.add(upstream)

    @property
    def upstreams(self) -> frozenset[HostPort]:
        return self._listed or frozenset(self._admitted)

    def __contains__(self, upstream: HostPort) -> bool:
        return upstream in (self._listed or self._admitted)
