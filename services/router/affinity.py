"""Where prompts that begin alike were sent: a guess at whose cache holds their beginning. Pure, of bounded memory.

Before P has answered nobody knows token ids, so prompts are compared as text: each piece of CHUNK bytes gets a mark
that stands for it and all before it. A mark names the engines that were last sent such a prompt.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pegaflow.services.router.openai import ClientRequest, Endpoint, dumps

CHUNK: Final = 512
"""Bytes: about eight blocks of 16 tokens."""
MAX_CHUNKS: Final = 256
MAX_MARKS: Final = 1 << 16
"""About 20 MB."""
NAMES: Final = 2
"""Per mark: a prefix that one engine cannot serve alone lives in several."""

Marks = Sequence[bytes]


def marks(request: ClientRequest) -> Marks:
    """Of the whole chunks of a prompt, in order; none for a short one."""
    body = request.body
    digest = hashlib.blake2b(digest_size=8)
    # What makes equal texts different prompts.
    digest.update(dumps([body.get(name) for name in ("model", "cache_salt", "tools", "chat_template", "chat_template_kwargs")]))
    found: list[bytes] = []
    text = _text(request)
    for start in range(0, min(len(text), CHUNK * MAX_CHUNKS) - CHUNK + 1, CHUNK):
        digest.update(text[start : start + CHUNK])
        found.append(digest.digest())
    return found


class PrefixMemory:
    """What engines of one role were sent."""

    def __init__(self, capacity: int = MAX_MARKS) -> None:
        self._capacity = capacity
        self._names: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def sent(self, prompt: Marks, name: str) -> None:
        # The beginning last: where memory is short, ends are forgotten first.
        for mark in reversed(prompt):
            others = tuple(one for one in self._names.get(mark, ()) if one != name)
            self._names[mark] = (name, *others)[:NAMES]
            self._names.move_to_end(mark)
        while len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def held(self, prompt: Marks) -> dict[str, int]:
        """Engine → chunks, from the beginning without a hole."""
        found: dict[str, int] = {}
        for number, mark in enumerate(prompt):
            names = [name for name in self._names.get(mark, ()) if found.get(name, 0) == number]
            if not names:
                break
            for name in names:
                found[name] = number + 1
        return found

    def __len__(self) -> int:
        return len(self._names)


def _text(request: ClientRequest) -> bytes:
    if request.endpoint is Endpoint.CHAT:
        messages = request.body.get("messages")
        return b"".join(map(dumps, messages)) if isinstance(messages, list) else b""
    prompt = request.body.get("prompt")
    return prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else dumps(prompt)
