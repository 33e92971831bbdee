"""Streams however their bytes come: cut anywhere, with any line ends, with or without the space."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from routed import routed
from scripted_engine import ScriptedEngine, rewritten

REWRITES: dict[str, Callable[[bytes], list[bytes]]] = {
    "every byte": lambda whole: [whole[at : at + 1] for at in range(len(whole))],
    "every seven": lambda whole: [whole[at : at + 7] for at in range(0, len(whole), 7)],
    "at once": lambda whole: [whole],
    "crlf": lambda whole: [whole.replace(b"\n", b"\r\n")],
    "crlf, every byte": lambda whole: REWRITES["every byte"](whole.replace(b"\n", b"\r\n")),
    "cr": lambda whole: [whole.replace(b"\n", b"\r")],
    "no space": lambda whole: [whole.replace(b"data: ", b"data:")],
    "comments and fields": lambda whole: [b": ping\n\nevent: message\nid: 1\nretry: 5\n" + whole],
}


@pytest.mark.parametrize("name", REWRITES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_same_answer_however_the_bytes_are_cut(path: str, name: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "stream": True}
            body["stream_options"] = {"include_usage": True}
            expected = await system.post(path, body)
            assert expected.text == "Hello wörld!"
            decode.disturb(rewritten(decode, REWRITES[name]))
            seen = await system.post(path, body)
            assert seen.chunks == expected.chunks  # how a sign is escaped is the engine's own choice
            assert seen.done
            system.assert_idle()

    asyncio.run(main())
