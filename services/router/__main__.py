"""`pegaflow-router`: the command."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pegaflow.common import logs
from pegaflow.common.config import load
from pegaflow.common.lifecycle import HealthServer, Lifecycle, run
from pegaflow.services.router import members
from pegaflow.services.router.api_keys import BadKeys
from pegaflow.services.router.app import Collaborators, RouterApp, create_app
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.server import EXPIRY_SECONDS, Server
from pegaflow.services.router.tls import BadCertificate, Certificate

log = logs.get(__name__)


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
    certificate = config.certificate()

    def serve(loop: asyncio.AbstractEventLoop) -> Coroutine[Any, Any, None]:
        arguments = sys.argv[1:] if argv is None else argv

        def reload() -> None:
            members.reload(config, arguments, os.environ, parts.engines)
            _reload(app, certificate)

        loop.add_signal_handler(signal.SIGHUP, reload)
        return _serve(config, app, certificate, parts)

    return run(serve, parts.lifecycle)


async def _serve(config: RouterConfig, app: RouterApp, certificate: Certificate | None, parts: Collaborators) -> None:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Bound here and not by uvicorn, which answers an address in use with an exit code of its own.
    listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    health = HealthServer(parts.lifecycle, config.health_host, config.health_port)
    health.start()
    if parts.control is not None:
        await parts.control.start()
        log.info("control", endpoint=parts.control.endpoint)
    log.info("listening", host=config.host, port=listener.getsockname()[1], tls=certificate is not None, keys=app.guard.keyed)
    server = Server(app, config, certificate.context if certificate is not None else None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    draining = asyncio.create_task(_drain(config, app, parts.lifecycle, server))
    try:
        await serving
    finally:
        draining.cancel()
        if parts.control is not None:
            await parts.control.close()
        health.close()


async def _drain(config: RouterConfig, app: RouterApp, lifecycle: Lifecycle, server: Server) -> None:
    await lifecycle.wait_drain()
    server.should_exit = True
    await asyncio.sleep(config.drain_timeout)
    expired = app.expire()
    log.warning("drain_deadline", open_requests=expired)
    await asyncio.sleep(EXPIRY_SECONDS)
    server.force_exit = True


def _reload(app: RouterApp, certificate: Certificate | None) -> None:
    """SIGHUP: what is wrong now is logged, and what was right before stays in use. Open requests go on."""
    for what, reload in (("api_keys", app.guard.reload), ("certificate", certificate.reload if certificate else None)):
        if reload is None:
            continue
        try:
            reload()
        except (BadKeys, BadCertificate) as error:
            log.error("reload_failed", what=what, text=str(error))
    log.info("reloaded", what="clients", names=sorted(app.guard.names))


if __name__ == "__main__":
    sys.exit(main())
