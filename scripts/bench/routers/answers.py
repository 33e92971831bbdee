"""What the backend says, in vLLM's shapes, with HTTP's framing. Pure.

As prefill engine it is asked for one token with ids, and names the prompt's and the token's; or, by routers for NIXL, with
`do_remote_decode`, and says where its blocks lie. As decode engine it goes on behind the ids that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .words import next_word, prompt_ids, text, token_id, word

Json = dict[str, Any]

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: backend\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_BLOCKS: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [1, 2, 3, 4, 5, 6, 7, 8],
    "remote_engine_id": "0b5a9a3e-6a4e-4c39-9dcb-5e6d1d0b3f5a",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
DEFAULT_TOKENS: Final = 16


class Asked(NamedTuple):
    """`ids`: whether they are wanted; `first`: the number of the first word; `blocks`: whether a decode engine comes for them."""

    chat: bool
    stream: bool
    ids: bool
    prompt: list[int]
    first: int
    tokens: int
    blocks: bool


def read(chat: bool, raw: bytes) -> Asked:
    body = json.loads(raw)
    kv = body.get("kv_transfer_params") or {}
    if kv.get("prompt_token_ids"):
        prompt = kv["prompt_token_ids"]
    elif chat:
        prompt = prompt_ids("".join(message["content"] for message in body["messages"]))
    else:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else prompt_ids(body["prompt"])
    return Asked(
        chat=chat,
        stream=bool(body.get("stream")),
        ids=bool(body.get("return_token_ids")),
        prompt=prompt,
        first=next_word(prompt),
        tokens=body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_TOKENS,
        blocks=bool(kv.get("do_remote_decode")),
    )


def json_answer(value: Json, status: str = "200 OK") -> bytes:
    body = _dumps(value)
    head = f"HTTP/1.1 {status}\r\nserver: backend\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def whole(asked: Asked) -> bytes:
    said = text(asked.first, asked.tokens)
    choice: Json = {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    choice["token_ids"] = [token_id(asked.first + n) for n in range(asked.tokens)] if asked.ids else None
    shown = asked.prompt if asked.ids else None
    answer: Json = {
        "id": "chatcmpl-1" if asked.chat else "cmpl-1",
        "object": "chat.completion" if asked.chat else "text_completion",
    }
    answer |= {"created": 1700000000, "model": "tiny", "choices": [choice]}
    if asked.chat:
        answer["object"] = "chat.completion"
        choice["message"] = {"role": "assistant", "content": said, "refusal": None, "tool_calls": [], "reasoning": None}
        answer["prompt_token_ids"] = shown
    else:
        choice |= {"text": said, "prompt_token_ids": shown}
    prompt = len(asked.prompt)
    answer["usage"] = {"prompt_tokens": prompt, "completion_tokens": asked.tokens, "total_tokens": prompt + asked.tokens}
    answer["kv_transfer_params"] = _BLOCKS if asked.blocks else None
    return json_answer(answer)


def streamed(asked: Asked) -> Iterator[bytes]:
    """What is written piece by piece: the head, an event for the role (chat) and for each token, the end."""
    yield _STREAM_HEAD
    shown = asked.prompt if asked.ids else None
    if asked.chat:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        yield _event(_dumps({**_chunk(True), "choices": [choice], "prompt_token_ids": shown}))
    for number in range(asked.first, asked.first + asked.tokens):
        last = number == asked.first + asked.tokens - 1
        if shown is not None and number == asked.first and not asked.chat:
            yield _event(_dumps(_token(False, True, number, last, shown)))
        else:
            yield _token_event(asked.chat, asked.ids, number, last)
    yield _event(b"[DONE]")
    yield b"0\r\n\r\n"


@lru_cache(maxsize=4096)
def _token_event(chat: bool, ids: bool, number: int, last: bool) -> bytes:
    # Kept: the backend is not to be what is measured.
    return _event(_dumps(_token(chat, ids, number, last, None)))


def _token(chat: bool, ids: bool, number: int, last: bool, prompt: list[int] | None) -> Json:
    choice: Json = {"index": 0}
    choice |= {"delta": {"content": word(number)}} if chat else {"text": word(number)}
    choice |= {"logprobs": None, "finish_reason": "length" if last else None}
    if last or not chat:
        choice["stop_reason"] = None
    choice["token_ids"] = [token_id(number)] if ids else None
    if not chat:
        choice["prompt_token_ids"] = prompt
    return {**_chunk(chat), "choices": [choice]}


def _chunk(chat: bool) -> Json:
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "chatcmpl-1" if chat else "cmpl-1", "object": kind, "created": 1700000000, "model": "tiny"}


def _event(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def _dumps(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
