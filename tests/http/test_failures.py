"""Engines that fail, each in each phase: what the client sees, what is tried again, and that nothing is left over."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from routed import Routed, routed
from scripted_engine import Handler, Json, ScriptedEngine, answers, hangs, hangs_up, streams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FRAME_ERROR = b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"


def body(path: str, **fields: Any) -> Json:
    prompt: Json = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": "tiny", **prompt, **fields}


def abort(path: str) -> bytes:
    choice = {"index": 0, "text": "", "delta": {"content": ""}, "finish_reason": "abort"}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("handler", [answers(500), answers(503), answers(429), answers(408), hangs_up])
def test_p_fails_once_and_is_tried_again(handler: Handler, path: str, stream: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        prefill.disturb(handler)
        async with routed(prefill, decode) as system:
            reply = await system.post(path, body(path, stream=stream))
            assert (reply.status, reply.text) == (200, "Hello wörld!")
            assert len(prefill.calls) == 2
            assert system.value("pegaflow_router_flow_retries_total") == 1
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("handlers", "status", "code", "retry_after"),
    [
        ([answers(500)] * 2, 502, "pd_prefill_failed", "1"),
        ([hangs_up] * 2, 502, "pd_prefill_failed", "1"),
        ([answers(429, {"Retry-After": "17"})] * 2, 503, "pd_prefill_busy", "17"),
        ([answers(503)] * 2, 503, "pd_prefill_busy", "1"),
        ([hangs] * 2, 504, "pd_prefill_timeout", "1"),
    ],
)
def test_p_fails_for_good(handlers: list[Handler], status: int, code: str, retry_after: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        prefill.disturb(*handlers)
        async with routed(prefill, decode, prefill_timeout=0.05 if hangs in handlers else 60) as system:
            reply = await system.post(CHAT, body(CHAT, stream=True))
            assert (reply.status, reply.error_code) == (status, code)
            assert reply.headers["retry-after"] == retry_after
            assert reply.json["error"]["type"] == "server_error"
            assert reply.json["error"].keys() == {"message", "type", "param", "code"}
            assert "scripted" not in reply.json["error"]["message"]
            assert not decode.calls
            system.assert_idle()
            assert system.count(outcome="failed", code=code) == 1

    asyncio.run(main())


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_4xx_is_the_clients_and_is_not_tried_again(role: str, status: int) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        engine = prefill if role == "prefill" else decode
        engine.disturb(answers(status))
        async with routed(prefill, decode) as system:
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, stream=True))
            assert reply.status == status
            assert reply.json["error"]["message"] == f"scripted {status}"
            assert len(engine.calls) == 1
            system.assert_idle()
            assert system.count(outcome="rejected", code=str(status)) == 1

    asyncio.run(main())


def test_p_without_an_answer_in_it_counts_as_failed() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()

        async def empty(call: Any) -> Any:
            from aiohttp import web

            return web.json_response({"choices": []})

        prefill.disturb(empty)
        async with routed(prefill, decode) as system:
            assert (await system.post(CHAT, body(CHAT))).text == "Hello wörld!"
            assert len(prefill.calls) == 2

    asyncio.run(main())


def before_a_byte(engine: ScriptedEngine, path: str, stream: bool) -> list[Handler]:
    """Ways in which D fails before the client got anything."""
    ways: list[Handler] = [answers(500), answers(503), hangs_up]
    if stream:
        for then in (FRAME_ERROR, FRAME_ERROR + DONE, DONE, b"", b"data: nonsense\n\n", abort(path), hangs_up):
            ways.append(streams(engine, chunks=0, then=then))
            if path == CHAT:  # the role alone is nothing yet
                ways.append(streams(engine, chunks=1, then=then))
    return ways


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_d_fails_before_a_byte_and_the_whole_flow_is_repeated(path: str, stream: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, retry_ratio=1.0) as system:
            ways = before_a_byte(decode, path, stream)
            for number, handler in enumerate(ways, start=1):
                decode.disturb(handler)
                reply = await system.post(path, body(path, stream=stream))
                assert (reply.status, reply.text) == (200, "Hello wörld!"), number
                assert reply.done is stream
                assert len(prefill.calls) == len(decode.calls) == 2 * number
                system.assert_idle()

    asyncio.run(main())


def test_d_fails_for_good_with_the_routers_own_text() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            for handler, status, code in (
                (answers(500), 502, "pd_decode_failed"),
                (answers(429), 503, "pd_decode_busy"),
                (streams(decode, chunks=0, then=FRAME_ERROR + DONE), 502, "pd_decode_failed"),
            ):
                decode.disturb(handler, handler)
                reply = await system.post(COMPLETIONS, body(COMPLETIONS, stream=True))
                assert (reply.status, reply.error_code) == (status, code)
                assert "decode engine" in reply.json["error"]["message"]
                assert reply.headers["retry-after"] == "1"
                system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_d_dies_after_a_byte(path: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, breaker_failures=0) as system:
            begun = 3 if path == CHAT else 2
            for then in (FRAME_ERROR, FRAME_ERROR + DONE, DONE, b"", b"data: [1]\n\n", abort(path), hangs_up):
                decode.disturb(streams(decode, chunks=begun, then=then))
                calls = len(prefill.calls)
                reply = await system.post(path, body(path, stream=True))
                assert reply.status == 200
                *told, error = reply.chunks
                assert error["error"]["code"] == "pd_decode_interrupted", then
                assert error["error"]["type"] == "server_error"
                assert not reply.done
                assert [chunk for chunk in told if chunk["choices"][0]["finish_reason"]] == []
                assert reply.text == "Hello wör"
                assert len(prefill.calls) == calls + 1
                system.assert_idle()
            assert system.count(outcome="interrupted", code="pd_decode_interrupted") == 7

    asyncio.run(main())


def test_d_falls_silent_after_a_byte() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, idle_timeout=0.5) as system:
            decode.disturb(streams(decode, chunks=1, then=hangs))
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, stream=True))
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            assert "no answer in time" in reply.chunks[-1]["error"]["message"]
            assert not reply.done
            system.assert_idle()

    asyncio.run(main())


def test_a_stream_that_lacks_only_done_is_whole() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        decode.disturb(streams(decode, chunks=99, then=b""))
        async with routed(prefill, decode) as system:
            body_ = body(COMPLETIONS, stream=True, stream_options={"include_usage": True})
            reply = await system.post(COMPLETIONS, body_)
            assert (reply.text, reply.done, reply.finish) == ("Hello wörld!", True, ("stop", None))
            assert reply.usage is not None
            assert reply.usage["completion_tokens"] == 6

    asyncio.run(main())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_an_unreachable_engine_is_left_out_and_comes_back() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        port = free_port()
        dead = f"http://127.0.0.1:{port}"
        async with routed(prefill, decode, dead=(dead,), health_interval=0.01) as system:
            for _ in range(3):
                assert (await system.post(CHAT, body(CHAT))).status == 200
            assert len(decode.calls) == 3
            late = ScriptedEngine()
            async with late.running(port):
                await healthy(system, dead, True)
                for _ in range(2):
                    assert (await system.post(CHAT, body(CHAT))).status == 200
                assert len(late.calls) == 1
            await healthy(system, dead, False)

    asyncio.run(main())


async def healthy(system: Routed, name: str, wanted: bool) -> None:
    (engine,) = [engine for engine in system.parts.engines.all() if engine.name == name]
    while engine.healthy is not wanted:
        await asyncio.sleep(0.005)


def test_an_engine_that_went_away_since_its_last_check() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with decode.running(port), routed(prefill, dead=(url,), health_interval=3600) as system:
            assert (await system.post(CHAT, body(CHAT))).status == 200
            await decode.stop()
            (engine,) = [engine for engine in system.parts.engines.all() if engine.name == url]
            reply = await system.post(CHAT, body(CHAT))
            assert (reply.status, reply.error_code) == (502, "pd_decode_unreachable")
            assert engine.healthy is False
            reply = await system.post(CHAT, body(CHAT))
            assert (reply.status, reply.error_code) == (503, "pd_no_decode_engine")
            assert reply.headers["retry-after"] == "1"
            system.assert_idle()

    asyncio.run(main())


def test_no_retries_when_told_so() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        prefill.disturb(answers(500))
        async with routed(prefill, decode, pd_flow_retries=0) as system:
            assert (await system.post(CHAT, body(CHAT))).status == 502
            assert len(prefill.calls) == 1

    asyncio.run(main())


def test_a_stream_without_a_first_byte() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, first_byte_timeout=0.05) as system:
            decode.disturb(*[streams(decode, chunks=0, then=hangs)] * 2)  # the status comes, and nothing more
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, stream=True))
            assert (reply.status, reply.error_code) == (504, "pd_decode_timeout")
            assert system.value("pegaflow_router_flow_retries_total") == 1
            assert 1 <= len(decode.calls) <= 2  # the second may be over before the engine has read it
            system.assert_idle()

    asyncio.run(main())


def test_an_engine_that_fails_again_and_again_gets_a_pause() -> None:
    async def main() -> None:
        prefill, bad, good = ScriptedEngine(), ScriptedEngine(), ScriptedEngine()
        bad.disturb(*[answers(400)] * 4, *[answers(500)] * 100)
        async with routed(prefill, bad, good, breaker_failures=3, breaker_pause=3600.0) as system:
            while len(bad.calls) < 4:
                await system.post(CHAT, body(CHAT))
            for _ in range(12):
                assert (await system.post(CHAT, body(CHAT))).status == 200
            assert len(bad.calls) == 4 + 3, "a 4xx does not count, and after three failures nobody asks"
            assert system.engine("breaker", bad) == 2
            assert system.engine("healthy", bad) == 1, "it answers health checks"
            assert system.engine("breaker", good) == 0
            system.assert_idle()

    asyncio.run(main())


def test_all_requests_share_a_budget_of_retries() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        prefill.disturb(*[answers(500)] * 100)
        async with routed(prefill, decode, pd_flow_retries=4, breaker_failures=0, retry_ratio=0.0) as system:
            for _ in range(5):
                assert (await system.post(CHAT, body(CHAT))).error_code == "pd_prefill_failed"
            assert len(prefill.calls) == 5 + 10
            assert system.value("pegaflow_router_retries_refused_total") == 3
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_the_routers_own_is_not_the_clients_trouble(tmp_path: Path, status: int) -> None:
    async def main() -> None:
        keys = tmp_path / "keys"
        keys.write_text("team-a:sk-a")
        mine, theirs = {"Authorization": "Bearer sk-a"}, {"Authorization": "Bearer of an engine"}
        cases: list[tuple[Json, dict[str, str]]] = [({"api_keys_file": str(keys)}, mine), ({}, theirs)]
        for options, headers in cases:
            for role, code in ((0, "pd_prefill_unauthorized"), (1, "pd_decode_unauthorized")):
                engines = ScriptedEngine(), ScriptedEngine()
                engines[role].disturb(answers(status), answers(status))
                async with routed(*engines, **options) as system:
                    reply = await system.post("/v1/completions", {"prompt": "Hi"}, headers)
                    if not options:  # the engine's word on the client's own key
                        assert reply.status == status
                        assert len(engines[role].calls) == 1
                        continue
                    assert (reply.status, reply.error_code) == (502, code)
                    assert reply.json["error"]["type"] == "server_error"
                    assert reply.headers["retry-after"] == "1"
                    assert len(engines[role].calls) == 2  # another engine may take it
                    assert system.count(outcome="failed", code=code) == 1
                    system.assert_idle()

    asyncio.run(main())


def test_a_connection_that_does_not_come_about() -> None:
    """Nobody accepts at D, and its queue is full: connecting takes for ever."""

    async def main() -> None:
        prefill = ScriptedEngine()
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            name = deaf.getsockname()
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(name)
            options: Json = {"connect_timeout": 0.1, "health_timeout": 0.05, "health_interval": 60}
            async with routed(prefill, dead=(f"http://127.0.0.1:{name[1]}",), **options) as system:
                for engine in system.parts.engines.all():
                    system.parts.engines.mark(engine, healthy=True)
                reply = await system.post(COMPLETIONS, body(COMPLETIONS))
                assert (reply.status, reply.error_code) == (502, "pd_decode_unreachable")
                assert "no connection in time" in reply.json["error"]["message"]
                system.assert_idle()
            for one in waiting:
                one.close()

    asyncio.run(main())
