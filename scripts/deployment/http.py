"""HTTP as a client of the deployment speaks it: JSON and server-sent events, one connection per request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, NamedTuple

from deployment.ports import HOST

Json = dict[str, Any]


class HttpFailure(Exception):
    """No answer (`status` 0), a status that is not 200, or an error object inside a stream. `text`: the body."""

    def __init__(self, url: str, status: int, text: str) -> None:
        super().__init__(f"{url}: {status or 'no answer'}: {text[:500]}")
        self.status, self.text = status, text


class Event(NamedTuple):
    """One `data:` of a stream, and seconds since the request was sent."""

    after: float
    body: Json


class Server:
    """Somebody who listens on `port` of loopback."""

    def __init__(self, port: int, timeout: float = 120.0) -> None:
        self._port = port
        self._timeout = timeout

    def url(self, path: str = "") -> str:
        return f"http://{HOST}:{self._port}{path}"

    def status(self, path: str, timeout: float = 2.0) -> tuple[int, str]:
        """Status and body of a GET; (0, reason) when nobody answers."""
        connection = HTTPConnection(HOST, self._port, timeout=timeout)
        with closing(connection):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode(errors="replace")
            except (OSError, HTTPException) as error:
                return 0, str(error)

    def text(self, path: str) -> str:
        """Raises HttpFailure."""
        status, text = self.status(path, self._timeout)
        if status != 200:
            raise HttpFailure(self.url(path), status, text)
        return text

    def post(self, path: str, body: Json) -> Json:
        """Raises HttpFailure."""
        connection = HTTPConnection(HOST, self._port, timeout=self._timeout)
        with closing(connection):
            try:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode()
            except (OSError, HTTPException) as error:
                raise HttpFailure(self.url(path), 0, str(error)) from None
            if response.status != 200:
                raise HttpFailure(self.url(path), response.status, text)
            answer: Json = json.loads(text)
            return answer

    def stream(self, path: str, body: Json) -> Iterator[Event]:
        """The events of `body` sent with `stream: true`, up to `[DONE]`. Raises HttpFailure, also for an error inside."""
        connection = HTTPConnection(HOST, self._port, timeout=self._timeout)
        started = time.monotonic()
        with closing(connection):
            try:
                payload = json.dumps(body | {"stream": True})
                connection.request("POST", path, payload, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200:
                    raise HttpFailure(self.url(path), response.status, response.read().decode(errors="replace"))
                for line in _lines(response):
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event: Json = json.loads(data)
                    if "error" in event:
                        raise HttpFailure(self.url(path), response.status, data.decode())
                    yield Event(time.monotonic() - started, event)
            except (OSError, HTTPException) as error:
                raise HttpFailure(self.url(path), 0, str(error)) from None
        raise HttpFailure(self.url(path), response.status, "the stream ended without [DONE]")


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """Whole lines. Raises HTTPException when the connection is lost before the body's end: `readline` says nothing of it."""
    ahead = b""
    while data := response.read1():
        *lines, ahead = (ahead + data).split(b"\n")
        yield from lines
