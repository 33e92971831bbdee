"""The ports of a deployment."""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import dataclass

from environment.complaint import Complaint

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """Those of the router, the engines and the health servers speak HTTP, the others ZeroMQ."""

    router: int
    p: int
    d: int
    reference: int
    metaserver_health: int
    tier_a_health: int
    tier_b_health: int
    metaserver_requests: int
    metaserver_events: int
    metaserver_control: int
    tier_a_requests: int
    tier_a_events: int
    tier_b_requests: int
    tier_b_events: int
    router_control: int
    router_health: int
    watch_health: int

    def all(self) -> tuple[int, ...]:
        return dataclasses.astuple(self)


SPAN = len(dataclasses.fields(Ports))


def from_base(base: int) -> Ports:
    """The ports at and after `base`, always the same ones, so that URLs can be printed and remembered."""
    return Ports(*range(base, base + SPAN))


def from_system(*others: Ports) -> Ports:
    """Ports that are free now; for tests, of which several may run on one machine. `others`: promised, maybe not in use yet.

    Each process begins to look elsewhere: vLLM takes its port a minute after it was found free.
    """
    bases = range(20000, 32000 - SPAN, SPAN)  # below Linux's ephemeral range, which starts at 32768
    first = os.getpid() % len(bases)
    for base in (*bases[first:], *bases[:first]):
        ports = from_base(base)
        if ports not in others and not taken(ports):
            return ports
    raise Complaint("port_taken", "no free range of ports between 20000 and 32000")


def taken(ports: Ports) -> list[int]:
    """Those that somebody listens on."""
    return [port for port in ports.all() if not _free(port)]


def check_free(ports: Ports) -> None:
    """Raises Complaint that names the ports in use."""
    used = taken(ports)
    if used:
        names = ", ".join(str(port) for port in used)
        raise Complaint("port_taken", f"in use on {HOST}: {names}; --port-base N takes others")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
