"""The router's HTTP side: `create_app(config)` makes the ASGI application."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import falcon
import falcon.asgi
from pegaflow.common import clock, logs, metrics
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.version import package_version
from pegaflow.services.doors import DoorCollector
from pegaflow.services.router.budget import RetryBudget
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.control import ControlSocket
from pegaflow.services.router.disconnect import CLEANUP, App, CancelOnDisconnect, Receive, Scope, Send
from pegaflow.services.router.edge import BODY, FORWARDED, Edge, overloaded, too_large
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.exchange import Exchange
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.guard import Guard
from pegaflow.services.router.locator import Locator
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.nodes import NodeEvents
from pegaflow.services.router.openai import Endpoint, Json, Refused, dumps, error_body, parse_request
from pegaflow.services.router.plan import FlowSettings
from pegaflow.services.router.prober import Prober
from pegaflow.services.router.room import Room, Share
from pegaflow.services.router.schema import document
from pegaflow.services.router.steps import Answer, Plan
from pegaflow.services.router.upstream import Upstream

log = logs.get(__name__)

JSON = "application/json"
PLAN_HEADER = "x-pegaflow-plan"


@dataclass(slots=True)
class Collaborators:
    """What the application works with; tests replace parts."""

    engines: Engines
    upstream: Upstream
    metrics: RouterMetrics
    lifecycle: Lifecycle
    now: Callable[[], float] = clock.now
    budget: RetryBudget = field(default_factory=lambda: RetryBudget(0.2))
    draw: Callable[[], float] = random.random
    nodes: NodeEvents | None = None
    locator: Locator | None = None
    control: ControlSocket | None = None
    ring: Keyring | None = None
    exchanges: set[Exchange] = field(default_factory=set)

    @classmethod
    def of(cls, config: RouterConfig) -> Collaborators:
        node = config.node or socket.gethostname()
        parts = cls(
            engines=config.engines(),
            budget=RetryBudget(config.retry_ratio),
            upstream=Upstream(config.timeouts(), config.allowed()),
            metrics=RouterMetrics(),
            lifecycle=Lifecycle("router"),
        )
        ring = parts.ring = config.keyring()
        if config.control:
            control = ControlSocket(
                config.control, node, parts.engines, parts.lifecycle, ring, plaintext_network=config.allow_plaintext_network
            )
            parts.control = control
            parts.metrics.registry.register(DoorCollector("router", lambda: control.kept))
        if config.metaserver and config.metaserver_events:
            parts.nodes = NodeEvents(config.metaserver, config.metaserver_events, parts.metrics.nodes, ring)
            if config.locate_wait and config.pd_first_token:
                told = config.placed()
                parts.locator = Locator(
                    config.metaserver, parts.nodes, parts.engines, parts.metrics, told, config.locate_wait, ring
                )
        return parts


class RouterApp:
    """The ASGI application, and what its process needs of it."""

    def __init__(self, config: RouterConfig, collaborators: Collaborators) -> None:
        self._parts = collaborators
        collaborators.engines.admit = collaborators.upstream.allowed.admit
        self.guard = config.guard()
        self.bodies = Room(config.max_bodies)
        self.connections = Room(config.max_connections)
        self.metrics = collaborators.metrics
        self.metrics.rooms(self.connections, self.bodies)
        self._edge = Edge(
            CancelOnDisconnect(_falcon_app(config, collaborators, self.guard)),
            self.guard,
            collaborators.metrics,
            max_header=config.max_header,
            max_body=config.max_body,
            bodies=self.bodies,
            authorization=_bearer(config),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, send)

    async def drain(self) -> None:
        """Refuse new requests; returns when none is open."""
        self._edge.stop()
        await self._edge.idle.wait()

    def expire(self) -> int:
        """End all open requests with an error; returns how many there were."""
        open_now = list(self._parts.exchanges)
        for exchange in open_now:
            exchange.expire()
        return len(open_now)


def create_app(config: RouterConfig, collaborators: Collaborators | None = None) -> RouterApp:
    """The application; it checks its engines once before it takes requests, and starts and stops what it uses."""
    return RouterApp(config, collaborators if collaborators is not None else Collaborators.of(config))


def _bearer(config: RouterConfig) -> str:
    return f"Bearer {config.engine_api_key}" if config.engine_api_key else ""


def _falcon_app(config: RouterConfig, parts: Collaborators, guard: Guard) -> App:
    headers = {"Authorization": _bearer(config)} if config.engine_api_key else {}
    prober = Prober(
        parts.engines,
        parts.upstream,
        parts.metrics,
        parts.lifecycle,
        interval=config.health_interval,
        timeout=config.health_timeout,
        headers=headers,
    )
    app = falcon.asgi.App(middleware=_Lifespan(parts, prober))
    settings = config.flow_settings()
    for endpoint in Endpoint:
        app.add_route(endpoint, Generate(endpoint, settings, config.max_body, config.client_timeout, parts))
    app.add_route("/v1/models", Models(parts.engines))
    app.add_route("/health", Health(parts.lifecycle))
    app.add_route("/ready", Ready(parts.lifecycle))
    app.add_route("/metrics", Metrics(parts.metrics))
    app.add_route("/version", Version())
    app.add_route("/openapi.json", OpenApi(document(keyed=guard.keyed, split=config.pd_first_token)))
    app.add_error_handler(falcon.HTTPError, _http_error)
    app.add_error_handler(Exception, _unexpected)
    return cast(App, app)  # Falcon's own type asks for dicts, which the server passes


class Generate:
    """POST of one of the two OpenAI endpoints."""

    def __init__(self, endpoint: Endpoint, settings: FlowSettings, max_body: int, silence: float, parts: Collaborators) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._max_body = max_body
        self._silence = silence
        self._parts = parts

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        parts = self._parts
        try:
            _check_media_type(req)
            request = parse_request(self._endpoint, await self._body(req))
        except Refused as refused:
            parts.metrics.refused(refused.code)
            _answer(
                resp, Answer(Plan.NONE, refused.status, dumps(refused.body()), retry_after=refused.headers.get("Retry-After"))
            )
            return
        flow, headers = Flow(request, self._settings, parts.draw), req.scope[FORWARDED]
        exchange = Exchange(flow, parts.upstream, parts.engines, parts.budget, parts.metrics, parts.now, headers, parts.locator)
        parts.exchanges.add(exchange)

        async def cleanup() -> None:
            parts.exchanges.discard(exchange)
            await exchange.close()

        req.scope[CLEANUP] = cleanup
        head = await exchange.head()
        if isinstance(head, Answer):
            _answer(resp, head)
            return
        resp.set_header(PLAN_HEADER, head.plan)
        resp.set_header("Cache-Control", "no-cache")
        resp.content_type = "text/event-stream; charset=utf-8"
        resp.stream = exchange

    async def _body(self, req: falcon.asgi.Request) -> bytes:
        read = bytearray()
        share: Share = req.scope[BODY]
        chunks = aiter(req.stream)
        try:
            while True:
                async with asyncio.timeout(self._silence):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return bytes(read)
                if not share.grow(len(chunk)):
                    raise overloaded()
                read += chunk
                # The edge has looked at Content-Length; a chunked body says its size only by ending.
                if len(read) > self._max_body:
                    raise too_large(self._max_body)
        except TimeoutError:
            text = f"nothing of the body came for {self._silence:g} s"
            raise Refused(text, code="request_timeout", status=408) from None


def _check_media_type(req: falcon.asgi.Request) -> None:
    """Raises Refused (415). A body without a type is taken for what it should be."""
    kind = (req.content_type or JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        raise Refused(f"the body must be {JSON}, not {kind}", code="unsupported_media_type", status=415)
    coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise Refused(f"the body must not be compressed ({coding})", code="unsupported_content_encoding", status=415)


class Models:
    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        models = self._engines.models()
        if not models:
            body = error_body("no engine is healthy", "server_error", "no_engine")
            _answer(resp, Answer(Plan.NONE, 503, dumps(body), retry_after="1"))
            return
        _json(resp, {"object": "list", "data": models})


class Health:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        _json(resp, {"state": self._lifecycle.state})


class Ready:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        reasons = self._lifecycle.reasons()
        _json(resp, {"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


class Metrics:
    def __init__(self, measured: RouterMetrics) -> None:
        self._measured = measured

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.content_type = metrics.CONTENT_TYPE
        resp.data = metrics.render(self._measured.registry) + metrics.render(metrics.process())


class Version:
    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        _json(resp, {"service": "router", "version": package_version()})


class OpenApi:
    def __init__(self, described: Json) -> None:
        self._described = dumps(described)

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.content_type = JSON
        resp.data = self._described


class _Lifespan:
    """Falcon middleware: starts and stops the collaborators with the server's lifespan."""

    def __init__(self, parts: Collaborators, prober: Prober) -> None:
        self._parts = parts
        self._prober = prober

    async def process_startup(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        await self._prober.start()
        if self._parts.nodes is not None:
            await self._parts.nodes.start()
        if self._parts.locator is not None:
            await self._parts.locator.start()
        self._parts.lifecycle.set_ready()

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        if self._parts.locator is not None:
            await self._parts.locator.close()
        if self._parts.nodes is not None:
            await self._parts.nodes.close()
        await self._prober.close()
        await self._parts.upstream.close()


def _answer(resp: falcon.asgi.Response, answer: Answer) -> None:
    resp.set_header(PLAN_HEADER, answer.plan)
    resp.status = answer.status
    resp.content_type = answer.content_type
    resp.data = answer.body
    if answer.retry_after is not None:
        resp.set_header("Retry-After", answer.retry_after)


def _json(resp: falcon.asgi.Response, value: object, status: int = 200) -> None:
    resp.status = status
    resp.content_type = JSON
    resp.data = dumps(value)


async def _http_error(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, error: falcon.HTTPError, params: dict[str, Any]
) -> None:
    status = falcon.http_status_to_code(error.status)
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    text = {404: f"there is no {req.path} here", 405: f"{req.path} does not take {req.method}"}.get(status)
    resp.set_headers(error.headers or {})
    _json(resp, error_body(text or error.description or error.title or code, kind, code), status)


async def _unexpected(req: falcon.asgi.Request, resp: falcon.asgi.Response, error: Exception, params: dict[str, Any]) -> None:
    log.exception("unexpected", path=req.path)
    _json(resp, error_body("the router failed", "server_error", "router_failed"), 500)
