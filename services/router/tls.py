"""The certificate that the router shows its clients."""

from __future__ import annotations

import ssl
from pathlib import Path


class BadCertificate(ValueError):
    """A certificate or key that cannot be used; names the file."""


class Certificate:
    """Owns the server's TLS context. `reload` changes what new connections are shown; open ones go on."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Args are PEM files; `key` is not encrypted. Raises BadCertificate."""
        self._cert = cert
        self._key = key
        self.context = _context(cert, key)

    def check(self) -> None:
        """Whether `reload` can work now. Raises BadCertificate."""
        _context(self._cert, self._key)

    def reload(self) -> None:
        """Raises BadCertificate, and then shows the old one."""
        self.check()  # a context that failed to load one may be left with half of it
        _load(self.context, self._cert, self._key)


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    _load(context, cert, key)
    return context


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise BadCertificate(f"{name} {path}: {error.strerror}") from None
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        why = "the key does not belong to the certificate" if mismatch else f"not a PEM pair without password ({error.reason})"
        raise BadCertificate(f"tls_cert {cert}, tls_key {key}: {why}") from None
