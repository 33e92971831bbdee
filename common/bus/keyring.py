"""What a process needs for CURVE: its own secret key, and the list of keys that may come in.

    curve_key_file    its secret key, 64 hex digits, 0600; made by `pegaflow keys gen`
    curve_allowed     lines of keys (see `key_list`), a file, or a folder of which every *.pub is read; a client needs none

One key per process serves it on both sides: it answers under this key, and comes to others with it.
"""

from __future__ import annotations

import os
from pathlib import Path

import zmq
from pegaflow.common.bus.endpoint import KEY_HEX, is_key, parse_endpoint
from pegaflow.common.bus.key_list import KeyList, parse_keys
from pegaflow.common.bus.roles import Identity, Role
from pegaflow.common.private import read_secret
from pegaflow.common.wire.errors import ErrorCode, LocalError
from zmq.utils import z85

MAX_LIST_BYTES = 4 << 20
PUBLIC_SUFFIX = ".pub"


def to_z85(key: str) -> bytes:
    """ZeroMQ's spelling of a key in hex."""
    return bytes(z85.encode(bytes.fromhex(key)))


def to_hex(key: bytes) -> str:
    """Of a key as ZeroMQ spells it."""
    return bytes(z85.decode(key)).hex()


def new_pair() -> tuple[str, str]:
    """A fresh public and secret key, in hex. Raises `bad_config` where libzmq has no CURVE."""
    _need_curve()
    public, secret = zmq.curve_keypair()
    return to_hex(public), to_hex(secret)


def _need_curve() -> None:
    if not zmq.has("curve"):
        raise LocalError(ErrorCode.BAD_CONFIG, "this libzmq was built without CURVE: install pyzmq from its wheels")


class Keyring:
    """Own key and list of one process, read from files once; `reload` reads the list anew. `service`: whose table counts."""

    def __init__(self, service: Role, key_file: Path, allowed: Path | None) -> None:
        """Raises `bad_config` or `unsafe_path`."""
        _need_curve()
        self.service, self._path = service, allowed
        secret = read_secret(key_file).strip().lower()
        if not is_key(secret):
            raise LocalError(ErrorCode.BAD_CONFIG, f"{key_file}: expected a secret key of {KEY_HEX} hex digits and nothing else")
        self.secret = to_z85(secret)
        self.public = zmq.curve_public(self.secret)
        self.public_hex = to_hex(self.public)
        self.listed: KeyList = _read_list(allowed) if allowed is not None else {}

    @property
    def serves(self) -> bool:
        """Whether there is a list, so that somebody could come in."""
        return self._path is not None

    def reload(self) -> tuple[int, int]:
        """Reads the list again; returns how many keys came and went. Raises `bad_config`: then the old one stays in use."""
        if self._path is None:
            return 0, 0
        before, self.listed = self.listed, _read_list(self._path)
        return len(self.listed.keys() - before.keys()), len(before.keys() - self.listed.keys())

    def identity(self, key: str) -> Identity | None:
        """Who holds this key, as the list says now."""
        return self.listed.get(key)


def keyring(service: Role, key_file: str, allowed: str) -> Keyring | None:
    """From two options; None: no keys. Raises `bad_config` or `unsafe_path`."""
    if not key_file:
        if allowed:
            raise LocalError(ErrorCode.BAD_CONFIG, "curve_allowed needs curve_key_file, the key of this process itself")
        return None
    return Keyring(service, Path(key_file), Path(allowed) if allowed else None)


def check_connects(ring: Keyring | None, endpoint: str) -> str:
    """The endpoint, if a process with these keys may connect to it. Raises `bad_endpoint`.

    With keys every TCP endpoint has its server's key, on loopback too: whoever could strip it would strip the encryption.
    """
    at = parse_endpoint(endpoint)
    if at.key and ring is None:
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{at.address} has a key (#…): that needs curve_key_file")
    if at.is_tcp and not at.key and ring is not None:
        raise LocalError(
            ErrorCode.BAD_ENDPOINT, f"{at.address}: with curve_key_file it needs its server's public key: {at.address}#KEY"
        )
    return endpoint


def _read_list(path: Path) -> KeyList:
    """Raises `bad_config`. Whoever can write the list decides who comes in, so others must not be able to."""
    try:
        parts = sorted(path.glob(f"*{PUBLIC_SUFFIX}")) if path.is_dir() else [path]
        for part in (path, *parts):
            info = part.stat()
            if info.st_mode & 0o022 or info.st_uid not in (os.getuid(), 0):
                raise LocalError(ErrorCode.UNSAFE_PATH, f"{part}: others can write it, and so say who may come in")
        found: dict[str, Identity] = {}
        for part in parts:
            with part.open(encoding="ascii") as file:
                more = parse_keys(file.read(MAX_LIST_BYTES), str(part))
            if twice := found.keys() & more.keys():
                raise ValueError(f"{part}: key {min(twice)[:8]}… is listed twice")
            found.update(more)
    except OSError as error:
        raise LocalError(ErrorCode.BAD_CONFIG, f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise LocalError(ErrorCode.BAD_CONFIG, str(error)) from None
    return found
