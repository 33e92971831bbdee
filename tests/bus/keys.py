"""Keys for tests: a small authority that makes pairs and lists them."""

from __future__ import annotations

from pathlib import Path

from pegaflow.common.bus.key_list import key_line
from pegaflow.common.bus.keyring import Keyring, new_pair
from pegaflow.common.bus.roles import Identity, Role
from pegaflow.common.private import write_secret


class Keys:
    """Secret keys and one list in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.allowed = folder / "allowed"
        self.allowed.touch(mode=0o600)
        self._count = 0

    def file(self, role: Role, node: str = "", *, listed: bool = True) -> Path:
        """A new secret key of this role."""
        public, secret = new_pair()
        self._count += 1
        path = self._folder / f"{role}-{self._count}"
        write_secret(path, secret)
        if listed:
            with self.allowed.open("a") as file:
                file.write(key_line(Identity(public, role, node)) + "\n")
        return path

    def client(self, role: Role, node: str = "", *, listed: bool = True) -> Keyring:
        """A keyring to come in with."""
        return Keyring(role, self.file(role, node, listed=listed), None)

    def server(self, role: Role, node: str = "") -> Keyring:
        """A keyring to answer with; it reads the list once, so make it last, or reload it."""
        return Keyring(role, self.file(role, node), self.allowed)

    def strike(self, ring: Keyring) -> None:
        """Takes a key off the list."""
        lines = self.allowed.read_text().splitlines(keepends=True)
        self.allowed.write_text("".join(line for line in lines if ring.public_hex not in line))
