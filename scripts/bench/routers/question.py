"""What is asked: the same by the load and by the check before it, and what the right answer is. Pure."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from .words import text

PROMPT: Final = "What is to be said of this? " * 36
"""About a thousand characters."""
PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class Question(NamedTuple):
    """`endpoint`: chat or completions; `tokens`: of the answer."""

    endpoint: str
    stream: bool
    tokens: int

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    @property
    def body(self) -> bytes:
        """Greedy, as far as the router is told: what it would resume, and so remembers more of."""
        asked = {"model": "tiny", "max_tokens": self.tokens, "temperature": 0, "stream": self.stream}
        chat = {"messages": [{"role": "user", "content": PROMPT}]}
        return json.dumps(asked | (chat if self.endpoint == "chat" else {"prompt": PROMPT})).encode()

    @property
    def raw(self) -> bytes:
        """The whole request."""
        body = self.body
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"POST {self.path} HTTP/1.1\r\n{fields}\r\n".encode() + body

    @property
    def events(self) -> int:
        """Of the stream: the role (chat), the tokens, [DONE]."""
        return self.tokens + (2 if self.endpoint == "chat" else 1) if self.stream else 0

    @property
    def text(self) -> str:
        """The right answer."""
        return text(0, self.tokens)

    def read(self, answer: bytes) -> str:
        """The text of an answer, whole or streamed. Raises ValueError, KeyError or IndexError for what is none."""
        if not self.stream:
            return self._said(json.loads(answer))
        lines = [line.removeprefix(b"data: ") for line in answer.splitlines() if line]
        if lines[-1] != b"[DONE]" or len(lines) != self.events:
            raise ValueError(f"{len(lines)} events, wanted {self.events}; the last is {lines[-1]!r}")
        return "".join(self._said(json.loads(line)) for line in lines[:-1])

    def _said(self, payload: dict[str, list[dict[str, dict[str, str]]]]) -> str:
        choice = payload["choices"][0]
        said = choice["text"] if self.endpoint == "completions" else choice["delta" if self.stream else "message"]["content"]
        return str(said)
