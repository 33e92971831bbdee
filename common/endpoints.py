"""Whether the addresses of one configuration fit together. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_EVERYWHERE = ("*", "0.0.0.0", "::", "[::]")


def host_port(endpoint: str) -> tuple[str, str]:
    """Of `tcp://HOST:PORT`, a key behind `#` left out; ("", "") for anything else."""
    scheme, _, rest = endpoint.partition("#")[0].partition("://")
    host, mark, port = rest.rpartition(":")
    return (host, port) if scheme == "tcp" and mark else ("", "")


def is_local(endpoint: str) -> bool:
    """Only this machine can connect to it: ipc, or tcp on loopback."""
    host, port = host_port(endpoint)
    if not port:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def apart(named: Mapping[str, str], *, health_host: str = "", health_port: int = 0) -> None:
    """Raises ValueError if two of one process's own endpoints, or one and its health port, would be one address.

    Args: option's name → endpoint, "" for one that is not used. A port `*` is never taken.
    """
    taken: dict[tuple[str, str], str] = {}
    for name, endpoint in named.items():
        host, port = host_port(endpoint)
        if not port or port == "*":
            continue
        other = taken.get((host, port))
        if other is not None:
            raise ValueError(f"{other} and {name} are both {endpoint}: each needs a port of its own")
        taken[host, port] = name
    for (host, port), name in taken.items():
        same = host == health_host or host in _EVERYWHERE or health_host in _EVERYWHERE
        if health_port and same and int(port) == health_port:
            raise ValueError(f"{name} is {named[name]} and health_port {health_port}: each needs a port of its own")
