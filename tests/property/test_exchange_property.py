"""Whatever engines do and whenever a client leaves: one end is counted, and engines, budget and gauges get everything back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.breaker import BreakerSettings
from pegaflow.services.router.budget import RetryBudget
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.exchange import Exchange
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.openai import DONE, Endpoint, Json, parse_request
from pegaflow.services.router.plan import FlowSettings, Mode
from pegaflow.services.router.policy import Policy
from pegaflow.services.router.steps import Answer, Answered, Ended, Failed, FailureKind, Frames, Role, Send
from prometheus_client import CollectorRegistry
from streamed import frame

CUT = object()
"""The client leaves while the engine is waited for."""
EXPIRES = object()
"""The router is stopped while the engine is waited for."""


def said(text: str, token: int, finish: str | None) -> Frames:
    choice: Json = {"index": 0, "text": text, "token_ids": [token], "finish_reason": finish}
    return frame(json.dumps({"id": "d", "choices": [choice]}))


def prefilled(finish: str) -> Answered:
    choice: Json = {"index": 0, "text": "a", "token_ids": [7], "prompt_token_ids": [1, 2], "finish_reason": finish}
    return Answered(200, json.dumps({"id": "p", "created": 1, "model": "m", "choices": [choice], "usage": {}}).encode())


troubles = st.one_of(
    st.builds(Failed, st.sampled_from(FailureKind), st.just("x")),
    st.builds(Answered, st.sampled_from([400, 408, 422, 429, 500, 503]), st.just(b"{}")),
    st.sampled_from([CUT, EXPIRES]),
)
answers = st.one_of(st.builds(prefilled, st.sampled_from(["length", "length", "stop"])), troubles)
frames = st.one_of(
    st.builds(said, st.sampled_from(["b", "c", "", "\ufffd"]), st.just(8), st.sampled_from([None, None, None, "stop", "abort"])),
    st.builds(said, st.just("b"), st.just(8), st.none()),
    st.sampled_from([frame("[DONE]"), frame("{"), Ended()]),
    troubles,
)
more = st.none() | frames


class ScriptedLeg:
    """Says what is drawn, and is closed exactly once before the next one opens. Frames come alone, or several at once."""

    def __init__(self, upstream: ScriptedUpstream, send: Send) -> None:
        self._upstream, self._send = upstream, send
        self.open = True

    async def next(self) -> Any:
        assert self.open
        event: Any = self._upstream.data.draw(frames if self._send.stream else answers)
        if isinstance(event, Frames):
            following = self._upstream.data.draw(more)
            if isinstance(following, Frames):
                event = Frames([*event.data, *following.data])
        if event is CUT or event is EXPIRES:
            if event is CUT:
                self._upstream.task.cancel()
            else:
                self._upstream.exchange.expire()
            await asyncio.sleep(60)
        return event

    async def close(self) -> None:
        self.open = False


class ScriptedUpstream:
    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.legs: list[ScriptedLeg] = []
        self.task: asyncio.Task[Any]
        self.exchange: Exchange

    def leg(self, engine: str, send: Send, headers: object, *, prefill: bool) -> ScriptedLeg:
        assert not any(leg.open for leg in self.legs), "one leg at a time"
        self.legs.append(ScriptedLeg(self, send))
        return self.legs[-1]


@settings(deadline=None, max_examples=60)
@given(st.data(), st.booleans(), st.sampled_from(Policy), st.integers(0, 2))
def test_everything_is_given_back(data: st.DataObject, stream: bool, policy: Policy, retries: int) -> None:
    now = [0.0]
    metrics, budget = RouterMetrics(CollectorRegistry()), RetryBudget(0.2)
    listed = {Role.PREFILL: ["p", "q"], Role.DECODE: ["d", "e"]}
    engines = Engines(listed, policy=policy, breaker=BreakerSettings(2, 5.0), now=lambda: now[0])
    chosen = FlowSettings(Mode.FIRST_TOKEN, retries=retries, model_length=100)
    body = {"prompt": "x" * 1200, "stream": stream, "temperature": 0, "max_tokens": 5}

    async def one(upstream: ScriptedUpstream) -> list[bytes | Answer]:
        # Pauses of no length: what they are is another test.
        flow = Flow(parse_request(Endpoint.COMPLETIONS, json.dumps(body).encode()), chosen, lambda: -1.0)
        exchange = Exchange(flow, upstream, engines, budget, metrics, lambda: now[0], {})  # type: ignore[arg-type]
        upstream.exchange = exchange
        got: list[bytes | Answer] = []
        try:
            head = await exchange.head()
            if isinstance(head, Answer):
                return [head]
            async for part in exchange:
                got.append(part)
            return got
        finally:
            await exchange.close()

    async def main(number: int) -> None:
        upstream = ScriptedUpstream(data)
        upstream.task = asyncio.ensure_future(one(upstream))
        ended = await asyncio.gather(upstream.task, return_exceptions=True)
        got: Any = ended[0]
        if isinstance(got, asyncio.CancelledError):
            assert _count(metrics, outcome="gone") >= 1
        elif isinstance(got, BaseException):
            raise got
        elif not isinstance(got[0], Answer):
            last = got[-1]
            assert isinstance(last, bytes)
            assert last.endswith(DONE) is not (b'"error"' in last)
        assert not any(leg.open for leg in upstream.legs)
        assert [engine.load for engine in engines.all()] == [0] * 4
        assert metrics.registry.get_sample_value("pegaflow_router_in_flight_requests") == 0
        assert _count(metrics) == number
        for engine in engines.all():
            assert metrics.registry.get_sample_value("pegaflow_router_engine_legs", _labels(engine)) in (None, 0)

    for number in range(1, 4):
        for engine in engines.all():
            engines.mark(engine, healthy=True)
        now[0] += data.draw(st.sampled_from([0.0, 6.0]))
        asyncio.run(main(number))
    # No breaker is left with a trial that nobody makes: after its pause an engine is asked again.
    now[0] += 1000.0
    for engine in engines.all():
        assert engine.breaker.allows(now[0])


def _labels(engine: Any) -> dict[str, str]:
    return {"role": engine.role, "engine": engine.name}


def _count(metrics: RouterMetrics, **labels: str) -> float:
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "pegaflow_router_requests_total" and labels.items() <= sample.labels.items()
    )
