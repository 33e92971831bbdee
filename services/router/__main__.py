"""`pegaflow-router`: the command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

import uvicorn
from pegaflow.common import logs
from pegaflow.common.config import load
from pegaflow.common.lifecycle import Lifecycle, run
from pegaflow.services.router import members
from pegaflow.services.router.app import Collaborators, RouterApp, create_app
from pegaflow.services.router.config import RouterConfig

log = logs.get(__name__)

EXPIRY_SECONDS = 2
"""After the drain deadline: for the error frames of what was not done to reach their clients."""


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which raises SIGTERM again instead of returning from `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def main(argv: Sequence[str] | None = None) -> int:
    config = load(
        RouterConfig,
        section="router",
        prog="pegaflow-router",
        description="Routes OpenAI requests to vLLM engines, splitting each over prefill and decode.",
        argv=argv,
    ).value
    node = config.node or socket.gethostname()
    logs.setup("router", node, config.log_level)
    parts = Collaborators.of(config)
    app = create_app(config, parts)

    def serve(loop: asyncio.AbstractEventLoop) -> Coroutine[Any, Any, None]:
        arguments = sys.argv[1:] if argv is None else argv
        loop.add_signal_handler(signal.SIGHUP, members.reload, config, arguments, os.environ, parts.engines)
        return _serve(config, app, parts)

    return run(serve, parts.lifecycle)


async def _serve(config: RouterConfig, app: RouterApp, parts: Collaborators) -> None:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Bound here and not by uvicorn, which answers an address in use with an exit code of its own.
    listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    if parts.control is not None:
        await parts.control.start()
        log.info("control", endpoint=parts.control.endpoint)
    log.info("listening", host=config.host, port=listener.getsockname()[1])
    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=int(config.drain_timeout) + EXPIRY_SECONDS + 1,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    draining = asyncio.create_task(_drain(config, app, parts.lifecycle, server))
    try:
        await serving
    finally:
        draining.cancel()
        if parts.control is not None:
            await parts.control.close()


async def _drain(config: RouterConfig, app: RouterApp, lifecycle: Lifecycle, server: Server) -> None:
    await lifecycle.wait_drain()
    server.should_exit = True
    await asyncio.sleep(config.drain_timeout)
    expired = app.expire()
    log.warning("drain_deadline", open_requests=expired)
    await asyncio.sleep(EXPIRY_SECONDS)
    server.force_exit = True


if __name__ == "__main__":
    sys.exit(main())
