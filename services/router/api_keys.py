"""The API keys that clients may show, and who each belongs to.

A file has one key per line, `name:key` or the key alone, which is then called after its line. `#` begins a comment line.
A name may stand on several lines: an old and a new key of one client, while it changes from one to the other.
The file is read whatever its mode; `open_secrets.py` says so where others can read it too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class BadKeys(ValueError):
    """What is wrong with a file of keys, and in which line; never the key."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """Pairs of a key's SHA-256 and its name: the keys themselves are not kept."""

    digests: tuple[tuple[bytes, str], ...]

    @classmethod
    def parse(cls, text: str) -> ApiKeys:
        """Raises BadKeys."""
        found: dict[bytes, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, colon, key = line.partition(":")
            if not colon:
                name, key = f"line{number}", line
            name, key = name.strip(), key.strip()
            if not name or not key:
                raise BadKeys(f"line {number}: must be name:key, or a key alone")
            if not all("!" <= sign <= "~" for sign in name + key):
                raise BadKeys(f"line {number}: name and key must be printable ASCII without spaces")
            if found.setdefault(_digest(key), name) != name:
                raise BadKeys(f"line {number}: this key was given to another name before")
        if not found:
            raise BadKeys("no key in it: nobody could use the router")
        return cls(tuple(found.items()))

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Raises BadKeys, which names the file."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"))
        except BadKeys as error:
            raise BadKeys(f"{path}: {error}") from None
        except OSError as error:
            raise BadKeys(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadKeys(f"{path}: not UTF-8") from None

    def name_of(self, key: str) -> str | None:
        """Whose key this is, or None. Takes as long for any key of that length, known or not."""
        shown = _digest(key)
        owner = None
        # No early end, and hashes of equal length: time says neither which key was nearly right nor how many there are.
        for digest, name in self.digests:
            if hmac.compare_digest(digest, shown):
                owner = name
        return owner

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for _, name in self.digests)


def bearer(values: Iterable[bytes]) -> str | None:
    """The key in the values of `Authorization`; None unless there is exactly one, of the scheme Bearer."""
    match list(values):
        case [value]:
            scheme, _, key = value.decode("latin-1").partition(" ")
            return (key.strip() or None) if scheme.lower() == "bearer" else None
    return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
