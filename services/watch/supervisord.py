"""What the watch says to its supervisord: events in (stdin, stdout) and XML-RPC out (a Unix socket or HTTP)."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple, cast
from xml.parsers.expat import ExpatError
from xmlrpc.client import Error, ServerProxy, Transport

RPC_SECONDS: Final = 10.0
RUNNING: Final = "RUNNING"


class NoAnswer(Exception):
    """supervisord did not say who runs: it cannot be reached, or what came is no such answer."""


class Process(NamedTuple):
    name: str
    state: str
    pid: int


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=RPC_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixTransport(Transport):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> _UnixConnection:
        made = _UnixConnection(self._path)
        self._connection = host, made  # so that it is closed with the proxy, and where an answer is none
        return made


class Supervisord:
    """`url` as supervisord gives it to its children in SUPERVISOR_SERVER_URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def processes(self) -> list[Process]:
        """All of them. Raises NoAnswer."""
        try:
            with self._proxy() as proxy:
                rows = cast(list[dict[str, Any]], proxy.supervisor.getAllProcessInfo())
            return [Process(row["name"], row["statename"], row["pid"]) for row in rows]
        # Half an answer, no HTTP, no XML, a refusal, or other values than those: whatever it is, the next look may find more.
        except (OSError, http.client.HTTPException, ExpatError, Error, LookupError, TypeError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    def _proxy(self) -> ServerProxy:
        if self._url.startswith("unix://"):
            return ServerProxy("http://localhost", transport=_UnixTransport(self._url.removeprefix("unix://")))
        return ServerProxy(self._url)


class Events:
    """supervisord's event protocol, as an iterator over event names: the next one is asked for when this one was dealt with."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink

    def __iter__(self) -> Iterator[str]:
        while True:
            self._say(b"READY\n")
            header = self._header(self._source.readline())
            if header is None:
                return
            self._source.read(int(header.get("len", "0")))
            yield header.get("eventname", "")
            self._say(b"RESULT 2\nOK")

    def _say(self, text: bytes) -> None:
        self._sink.write(text)
        self._sink.flush()

    @staticmethod
    def _header(line: bytes) -> Mapping[str, str] | None:
        """None: supervisord has gone."""
        if not line:
            return None
        return dict(pair.partition(":")[::2] for pair in line.decode("ascii", "replace").split())
