"""Without --pd-first-token, and what is not generation: models, health, readiness, metrics, version, errors."""

from __future__ import annotations

import asyncio
import json

import pytest
from pegaflow.services.router.prober import SLOW_CHECKS, Prober
from routed import routed
from scripted_engine import Json, ScriptedEngine, answers, hangs_up, pauses, streams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODY: Json = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_mixed_engines_answer_alone_and_in_turn(path: str, stream: bool) -> None:
    async def main() -> None:
        one, two = ScriptedEngine(), ScriptedEngine()
        async with routed(one, two, mixed=True) as system:
            body = BODY | {"stream": stream, "n": 1, "seed": 3, "kv_transfer_params": {"a": 1}}
            for _ in range(4):
                reply = await system.post(path, body)
                assert (reply.text, reply.headers["x-pegaflow-plan"]) == ("Hello wörld!", "direct")
                assert reply.done is stream
                assert b"secret" not in reply.body
            assert (len(one.calls), len(two.calls)) == (2, 2)
            assert all("kv_transfer_params" not in call.body for call in one.calls + two.calls)
            assert one.calls[0].body["seed"] == 3
            system.assert_idle()

    asyncio.run(main())


def test_a_mixed_engine_fails_over() -> None:
    async def main() -> None:
        one, two = ScriptedEngine(), ScriptedEngine()
        one.disturb(answers(500), hangs_up, answers(500))
        two.disturb(answers(500))
        async with routed(one, two, mixed=True) as system:
            assert (await system.post(CHAT, BODY)).status == 502
            assert (await system.post(CHAT, BODY)).status == 200
            reply = await system.post(CHAT, BODY)
            assert reply.status == 200
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_prefill_first_then_decode_with_the_original_body(stream: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, first_token=False) as system:
            body = BODY | {"stream": stream, "max_tokens": 4, "kv_transfer_params": {"a": 1}}
            reply = await system.post(COMPLETIONS, body)
            assert (reply.text, reply.headers["x-pegaflow-plan"]) == ("Hello wörld", "replay")
            assert prefill.calls[0].body["max_tokens"] == 1
            assert "return_token_ids" not in prefill.calls[0].body
            assert decode.calls[0].body == body | {"kv_transfer_params": {"pegaflow_expected": True}}
            decode.disturb(streams(decode, chunks=2, then=b""))
            reply = await system.post(COMPLETIONS, BODY | {"stream": True})
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            system.assert_idle()

    asyncio.run(main())


def test_models_come_from_the_engines() -> None:
    async def main() -> None:
        async with routed(ScriptedEngine(), ScriptedEngine()) as system:
            reply = await system.get("/v1/models")
            assert [model["id"] for model in reply.json["data"]] == ["tiny"]

    asyncio.run(main())


def test_readiness_follows_the_engines() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        decode.healthy = False
        async with routed(prefill, decode, health_interval=0.01) as system:
            reply = await system.get("/ready")
            assert reply.status == 503
            assert reply.json == {"ready": False, "reasons": [{"code": "no_decode", "text": "no healthy decode engine"}]}
            assert (await system.get("/health")).json == {"state": "ready"}
            reply = await system.post(CHAT, BODY)
            assert (reply.status, reply.error_code) == (503, "pd_no_decode_engine")
            decode.healthy = True
            while (await system.get("/ready")).status != 200:
                await asyncio.sleep(0)
            assert (await system.post(CHAT, BODY)).status == 200
            prefill.healthy = decode.healthy = False
            while len((await system.get("/ready")).json["reasons"]) != 2:
                await asyncio.sleep(0)
            reply = await system.get("/v1/models")
            assert (reply.status, reply.error_code) == (503, "no_engine")

    asyncio.run(main())


def test_a_late_health_check_must_repeat_itself() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, health_interval=3600) as system:
            parts = system.parts
            (engine,) = [engine for engine in parts.engines.all() if engine.name == decode.url]
            prober = Prober(
                parts.engines, parts.upstream, parts.metrics, parts.lifecycle, interval=3600, timeout=0.01, headers={}
            )
            decode.health_hangs = True
            seen = []
            for _ in range(SLOW_CHECKS):
                await prober.check(engine)
                seen.append(engine.healthy)
            assert seen == [True] * (SLOW_CHECKS - 1) + [False]
            assert "no answer in time" in next(row["why"] for row in parts.engines.view() if row["url"] == decode.url)
            decode.health_hangs = False
            while not engine.healthy:
                await prober.check(engine)
            assert (engine.slow_checks, engine.why) == (0, "")

    asyncio.run(main())


def test_metrics_and_version() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        go_on = asyncio.Event()
        decode.disturb(pauses(go_on))
        async with routed(prefill, decode) as system:
            async with system.session.post(system.url + COMPLETIONS, json={"prompt": "Hi", "stream": True}) as response:
                await response.content.readuntil(b"Hel")
                go_on.set()
                await response.read()
            text = (await system.get("/metrics")).body.decode()
            assert 'pegaflow_router_requests_total{code="200",outcome="ok",plan="splice"} 1.0' in text
            assert 'pegaflow_router_first_token_seconds_count{plan="splice"} 1.0' in text
            assert "pegaflow_router_handoff_seconds_count 1.0" in text
            assert 'pegaflow_router_inter_token_seconds_count{plan="splice"} 1.0' in text  # "Hel" and "lo" come together
            assert "pegaflow_router_in_flight_requests 0.0" in text
            assert (await system.get("/version")).json["service"] == "router"

    asyncio.run(main())


def test_errors_have_openais_shape() -> None:
    async def main() -> None:
        async with routed(ScriptedEngine(), ScriptedEngine(), max_body=100) as system:
            for reply, status, code in (
                (await system.get("/nothing"), 404, "not_found"),
                (await system.get(CHAT), 405, "method_not_allowed"),
                (await system.post(CHAT, b"{"), 400, "invalid_json"),
                (await system.post(CHAT, b"[]"), 400, "invalid_json"),
                (await system.post(CHAT, b""), 400, "invalid_json"),
                (await system.post(CHAT, b"[" * 90), 400, "invalid_json"),
                (await system.post(CHAT, b"\xff"), 400, "invalid_json"),
                (await system.post(CHAT, json.dumps({"x": "y" * 100}).encode()), 413, "body_too_large"),
            ):
                assert (reply.status, reply.error_code) == (status, code)
                assert reply.json["error"]["type"] == "invalid_request_error"
            system.assert_idle()

    asyncio.run(main())
