"""Watches the engines: which are healthy, which models they serve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from pegaflow.common import logs
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.services.router.engines import Engine, Engines
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.openai import Json
from pegaflow.services.router.upstream import Upstream

SLOW_CHECKS = 3
"""A busy engine may answer late; one that is down refuses the connection. So lateness has to repeat itself."""

log = logs.get(__name__)


class Prober:
    """Asks every engine for /health each `interval` seconds, one task per engine; and for /v1/models when it
    became healthy. Sets the lifecycle's reasons: the router is ready while every role has a healthy engine.
    """

    def __init__(
        self,
        engines: Engines,
        upstream: Upstream,
        metrics: RouterMetrics,
        lifecycle: Lifecycle,
        *,
        interval: float,
        timeout: float,
        headers: Mapping[str, str],
    ) -> None:
        self._engines = engines
        self._upstream = upstream
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._interval = interval
        self._timeout = timeout
        self._headers = headers
        self._tasks: dict[Engine, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Returns when every engine was asked once, so that the first request does not meet unknown engines."""
        await asyncio.gather(*(self.check(engine) for engine in self._engines.all()))
        self._engines.changed = self._follow
        self._tasks = {engine: asyncio.create_task(self._watch(engine)) for engine in self._engines.all()}

    async def close(self) -> None:
        self._engines.changed = lambda: None
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self) -> None:
        """Engines came or went: a new one is asked at once."""
        there = self._engines.all()
        for engine in self._tasks.keys() - set(there):
            self._tasks.pop(engine).cancel()
            self._metrics.engine(engine, self._engines.breaker(engine))
        for engine in there:
            if engine not in self._tasks:
                self._tasks[engine] = asyncio.create_task(self._meet(engine))
        self._tell()

    async def _meet(self, engine: Engine) -> None:
        await self.check(engine)
        await self._watch(engine)

    async def check(self, engine: Engine) -> None:
        """Ask one engine now."""
        was = engine.healthy
        try:
            status, _ = await self._upstream.get(engine.name, "/health", self._timeout, self._headers)
            healthy, why = status == 200, f"/health answered {status}"
            engine.slow_checks = 0
        except TimeoutError:
            engine.slow_checks += 1
            healthy = bool(was) and engine.slow_checks < SLOW_CHECKS
            why = "no answer in time: it is stopped, hangs or is overloaded"
        except ConnectionRefusedError:
            healthy, why = False, "nobody listens there: its process is not running, or has not started yet"
        except OSError as error:
            healthy, why = False, str(error)
        if healthy and (not was or not engine.models):
            engine.models = await self._models(engine)
        if engine.removed:
            return
        self._engines.mark(engine, healthy=healthy, why="" if healthy else why)
        self._metrics.engine(engine, self._engines.breaker(engine))
        self._tell()
        if healthy is not was:
            log.info("engine_health", engine=engine.name, role=engine.role, healthy=healthy, why=why)

    async def _watch(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.check(engine)

    async def _models(self, engine: Engine) -> list[Json]:
        try:
            status, body = await self._upstream.get(engine.name, "/v1/models", self._timeout, self._headers)
            listed = json.loads(body)["data"] if status == 200 else []
            return [model for model in listed if isinstance(model, dict)]
        except (OSError, TimeoutError, ValueError, KeyError, TypeError):
            return []  # asked again at the next check; an engine without a list of models still answers

    def _tell(self) -> None:
        missing = self._engines.missing()
        for role in self._engines.roles:
            code = f"no_{role}" if role.value != "engine" else "no_engine"
            if role in missing:
                self._lifecycle.set_reason(code, f"no healthy {role} engine" if role.value != "engine" else "no healthy engine")
            else:
                self._lifecycle.clear_reason(code)
