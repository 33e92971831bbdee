"""Encryption of what lies on disk: AES-256 in Galois/counter mode, under a key of its own for each segment.

    key file (32 bytes) ─HKDF-SHA256(salt of the segment)─▶ the segment's key │ 16 bytes that tell a wrong key from a damaged log

    nonce     "PAGE" + offset, 8 bytes, of a page's part in its segment        "LOG " + offset of the page, for its record
    header    salt 32 B │ check 16 B            bound in: the segment's number, so that a file under another name says nothing

A nonce never repeats under one key: the salt is fresh for each segment file, and within a segment a place is written once and
never used again (index.py), also not after a failed write, which closes the segment. Tags of pages stand in the log, which is
sealed as well: keys of pages are hashes of prompts, and checksums let a guess be confirmed.

`cryptography` and not own code: it is OpenSSL's AES with the instructions of the processor. It is needed only here, so it is an
extra: pip install pegaflow[encryption].
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pegaflow.common.private import read_secret
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.services.tier.disk.record import TAG_BYTES

KEY_HEX: Final = 64
SALT_BYTES: Final = 32
CHECK_BYTES: Final = 16
SEALED_HEADER_BYTES: Final = SALT_BYTES + CHECK_BYTES
_STEP: Final = 256 << 10
"""Bytes in one call, which keeps the interpreter lock: a tenth of a millisecond."""


def load_cipher(key_file: str) -> Cipher | None:
    """From an option; empty: None. Raises `bad_config` or `unsafe_path`."""
    if not key_file:
        return None
    text = read_secret(Path(key_file)).strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(text) != KEY_HEX or len(key) * 2 != KEY_HEX:
        raise LocalError(ErrorCode.BAD_CONFIG, f"{key_file}: expected a key of {KEY_HEX} hex digits and nothing else")
    return Cipher(key)


class Cipher:
    """The tier's key for its disk level. Threads may share it."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives import ciphers, hashes
            from cryptography.hazmat.primitives.ciphers import algorithms, modes
            from cryptography.hazmat.primitives.kdf import hkdf
        except ImportError as error:
            raise LocalError(ErrorCode.BAD_CONFIG, f"disk_key_file: {error}: install pegaflow[encryption]") from None
        self._key, self.invalid = key, InvalidTag
        self._hkdf, self._sha256 = hkdf.HKDF, hashes.SHA256
        self._cipher, self._aes, self._gcm = ciphers.Cipher, algorithms.AES, modes.GCM

    def new_segment(self, number: int) -> SegmentCipher:
        """With a fresh salt."""
        return SegmentCipher(self, number, os.urandom(SALT_BYTES))

    def old_segment(self, number: int, sealed: bytes) -> SegmentCipher | None:
        """Of a segment that has this in its header. None: written under another key."""
        segment = SegmentCipher(self, number, sealed[:SALT_BYTES])
        return segment if segment.header == sealed else None

    def derive(self, number: int, salt: bytes) -> tuple[bytes, bytes]:
        info = b"pegaflow disk segment" + number.to_bytes(8, "big")
        made = self._hkdf(algorithm=self._sha256(), length=32 + CHECK_BYTES, salt=salt, info=info).derive(self._key)
        return made[:32], made[32:]

    def encryptor(self, key: bytes, nonce: bytes) -> Any:
        return self._cipher(self._aes(key), self._gcm(nonce)).encryptor()

    def decryptor(self, key: bytes, nonce: bytes, tag: bytes) -> Any:
        return self._cipher(self._aes(key), self._gcm(nonce, tag)).decryptor()


class SegmentCipher:
    """Of one segment. `header`: what its log begins with behind the plain header."""

    def __init__(self, cipher: Cipher, number: int, salt: bytes) -> None:
        self._cipher = cipher
        self._key, check = cipher.derive(number, salt)
        self.header = salt + check

    def seal(self, offset: int, page: memoryview, out: memoryview) -> bytes:
        """Writes the encrypted bytes of a page's part into `out`, of the same length; returns the tag."""
        made = self._cipher.encryptor(self._key, _nonce(b"PAGE", offset))
        for at in range(0, len(page), _STEP):
            made.update_into(page[at : at + _STEP], out[at : at + _STEP])
        made.finalize()
        return bytes(made.tag)

    def open(self, offset: int, sealed: memoryview, tag: bytes, out: memoryview) -> bool:
        """The reverse. False: other bytes than were written; what is in `out` then means nothing."""
        made = self._cipher.decryptor(self._key, _nonce(b"PAGE", offset), tag)
        for at in range(0, len(sealed), _STEP):
            made.update_into(sealed[at : at + _STEP], out[at : at + _STEP])
        return self._ends(made)

    def seal_record(self, offset: int, body: bytes) -> bytes:
        """Offset in clear, then the body, then its tag."""
        made = self._cipher.encryptor(self._key, _nonce(b"LOG ", offset))
        sealed = made.update(body) + made.finalize()
        return b"".join((offset.to_bytes(8, "little"), sealed, made.tag))

    def open_record(self, sealed: bytes) -> bytes | None:
        """None: not what was written."""
        if len(sealed) < 8 + TAG_BYTES:
            return None
        made = self._cipher.decryptor(self._key, _nonce(b"LOG ", int.from_bytes(sealed[:8], "little")), sealed[-TAG_BYTES:])
        body: bytes = made.update(sealed[8:-TAG_BYTES])
        return body if self._ends(made) else None

    def _ends(self, made: Any) -> bool:
        try:
            made.finalize()
        except self._cipher.invalid:
            return False
        return True


def _nonce(kind: bytes, offset: int) -> bytes:
    return kind + offset.to_bytes(8, "big")
