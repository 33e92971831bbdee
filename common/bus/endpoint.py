"""Endpoints as people and messages write them, pure: `tcp://HOST:PORT`, `ipc://PATH`, and with CURVE the server's key behind it.

    tcp://10.0.0.9:7400#5f2c…        64 hex digits: the public key of whoever answers there

The key travels with the endpoint wherever that goes: a configuration, a hello, a list of nodes, an owner of a page. So whoever
has an authentic endpoint of a metaserver has the authentic key of every tier that it knows. Hex and not ZeroMQ's Z85, whose signs
mean something to shells.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from pegaflow.common.wire.errors import ErrorCode, LocalError

MAX_IPC_PATH = 107
KEY_HEX = 64
_HEX = frozenset("0123456789abcdef")


class Endpoint(NamedTuple):
    """`address` is what ZeroMQ takes; `key` the server's public key in hex, empty without CURVE."""

    address: str
    key: str

    @property
    def is_tcp(self) -> bool:
        return self.address.startswith("tcp://")


def is_key(text: str) -> bool:
    """A public key in hex."""
    return len(text) == KEY_HEX and set(text) <= _HEX


def parse_endpoint(text: str) -> Endpoint:
    """Takes an endpoint apart. Raises `bad_endpoint` saying what is wrong."""
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in ("tcp", "ipc"):
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{text!r}: expected tcp://HOST:PORT or ipc://PATH")
    if scheme == "ipc":
        if not rest.startswith("/") or len(rest.encode()) > MAX_IPC_PATH:
            raise LocalError(ErrorCode.BAD_ENDPOINT, f"{text!r}: an ipc path is absolute and has at most {MAX_IPC_PATH} bytes")
        return Endpoint(text, "")
    place, mark, key = rest.partition("#")
    if mark and not is_key(key):
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{text!r}: behind # stands the server's public key, {KEY_HEX} hex digits")
    host, mark, port = place.rpartition(":")
    if not host or not mark or not (port == "*" or (port.isdecimal() and port.isascii() and 0 < int(port) < 65536)):
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{text!r}: expected tcp://HOST:PORT with a port of 1 to 65535 or *")
    return Endpoint(f"tcp://{place}", key)


def check_endpoint(text: str) -> str:
    """Returns the endpoint if ZeroMQ can use it; raises `bad_endpoint`."""
    parse_endpoint(text)
    return text


def without_key(text: str) -> str:
    """For people: 64 digits in a sentence help nobody."""
    return text.partition("#")[0]


def is_of_this_machine(text: str) -> bool:
    """Whether nobody outside this machine can reach it: ipc, or an address of the loopback interface."""
    if text.startswith("ipc://"):
        return True
    host = without_key(text).removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host in ("localhost", "lo"):  # ZeroMQ takes names of interfaces, too
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
