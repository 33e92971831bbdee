"""A router in this process, between a client and scripted engines, all on loopback sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.services.router.app import Collaborators, RouterApp, create_app
from pegaflow.services.router.budget import RetryBudget
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.server import Server
from pegaflow.services.router.upstream import Upstream
from prometheus_client import CollectorRegistry
from scripted_engine import Json, ScriptedEngine


@dataclass(slots=True)
class Reply:
    """An answer as the client saw it. `data`: of each event of a stream."""

    status: int
    headers: dict[str, str]
    body: bytes
    data: list[str]

    @property
    def json(self) -> Json:
        parsed: Json = json.loads(self.body)
        return parsed

    @property
    def chunks(self) -> list[Json]:
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def done(self) -> bool:
        return bool(self.data) and self.data[-1] == "[DONE]"

    @property
    def text(self) -> str:
        if not self.data:
            choice = self.json["choices"][0]
            return str(choice["message"]["content"] if "message" in choice else choice["text"])
        pieces = []
        for chunk in self.chunks:
            for choice in chunk.get("choices", []):
                pieces.append(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
        return "".join(pieces)

    @property
    def finish(self) -> tuple[Any, Any]:
        choices = self.json["choices"] if not self.data else [c for chunk in self.chunks for c in chunk.get("choices", [])]
        last = [choice for choice in choices if choice.get("finish_reason") is not None]
        assert len(last) == 1, "one finish reason"
        return last[0]["finish_reason"], last[0].get("stop_reason")

    @property
    def usage(self) -> Json | None:
        if not self.data:
            found: Json | None = self.json["usage"]
            return found
        return next((chunk["usage"] for chunk in self.chunks if not chunk.get("choices") and "usage" in chunk), None)

    @property
    def error_code(self) -> str:
        return str(self.json["error"]["code"])


class Routed:
    """The system under test; `engines[0]` is P, the others are D, unless it is `mixed`."""

    def __init__(self, url: str, session: aiohttp.ClientSession, parts: Collaborators, app: RouterApp) -> None:
        self.url = url
        self.app = app
        self.session = session
        self.parts = parts

    async def post(self, path: str, body: Json | bytes, headers: dict[str, str] | None = None, url: str | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        async with self.session.post((url or self.url) + path, data=data, headers=headers) as response:
            raw = await response.read()
            events: list[str] = []
            if response.content_type == "text/event-stream":
                events = [part.removeprefix("data: ") for part in raw.decode().split("\n\n") if part]
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, raw, events)

    async def get(self, path: str) -> Reply:
        async with self.session.get(self.url + path) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read(), [])

    def count(self, **labels: str) -> float:
        """pegaflow_router_requests_total, summed over the labels not given."""
        return sum(
            sample.value
            for family in self.parts.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "pegaflow_router_requests_total" and labels.items() <= sample.labels.items()
        )

    def value(self, name: str, **labels: str) -> float:
        found = self.parts.metrics.registry.get_sample_value(name, labels)
        assert found is not None
        return found

    def engine(self, name: str, engine: ScriptedEngine) -> float:
        """A gauge of one engine: `legs`, `healthy` or `breaker`."""
        return sum(
            sample.value
            for family in self.parts.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"pegaflow_router_engine_{name}" and sample.labels["engine"] == engine.url
        )

    def assert_idle(self) -> None:
        """Nothing is left over: no leg, no request, no exchange."""
        assert [engine.load for engine in self.parts.engines.all()] == [0] * len(self.parts.engines.all())
        assert self.value("pegaflow_router_in_flight_requests") == 0
        assert not self.parts.exchanges


@asynccontextmanager
async def routed(
    *engines: ScriptedEngine, mixed: bool = False, first_token: bool = True, dead: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Routed]:
    """Starts the engines and a router over them. `dead`: base URLs of decode engines that do not answer."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.running())
        urls = tuple(engine.url for engine in engines)
        options = {"health_timeout": 60.0, **options}  # an engine that is late once would stay away for good
        if mixed:
            config = RouterConfig(engine=urls, **options)
        else:
            config = RouterConfig(prefill=urls[:1], decode=urls[1:] + dead, pd_first_token=first_token, **options)
        parts = Collaborators(
            engines=config.engines(),
            budget=RetryBudget(config.retry_ratio),
            upstream=Upstream(config.timeouts(), config.allowed()),
            metrics=RouterMetrics(CollectorRegistry()),
            lifecycle=Lifecycle("router"),
        )
        app = create_app(config, parts)
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = Server(app, config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), read_bufsize=1 << 22)
        )
        system = Routed(url, session, parts, app)
        await until(lambda: server.started or serving.done())
        try:
            yield system
        finally:
            server.should_exit = True
            await serving


async def until(condition: Any) -> None:
    """Returns when the condition holds; the test's own timeout says when that takes too long."""
    while not condition():
        await asyncio.sleep(0.001)
