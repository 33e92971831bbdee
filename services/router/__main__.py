"""`pegaflow-router`: the command."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pegaflow.common import logs, machine
from pegaflow.common.config import load
from pegaflow.common.lifecycle import HealthServer, Lifecycle, run
from pegaflow.common.listening import listening
from pegaflow.common.live_config import LiveConfig
from pegaflow.services.reload import reloading
from pegaflow.services.router import members
from pegaflow.services.router.app import Collaborators, RouterApp, create_app
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.open_secrets import warn_of_open_secrets
from pegaflow.services.router.server import EXPIRY_SECONDS, Server
from pegaflow.services.router.tls import Certificate

log = logs.get(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    loaded = load(
        RouterConfig,
        section="router",
        prog="pegaflow-router",
        description="Routes OpenAI requests to vLLM engines, splitting each over prefill and decode.",
        argv=argv,
    )
    config, live = loaded.value, LiveConfig.of(loaded, "router", argv)
    node = config.node or socket.gethostname()
    logs.setup("router", node, config.log_level)
    warn_of_open_secrets(config)
    parts = Collaborators.of(config)
    app = create_app(config, parts)
    certificate = config.certificate()
    if parts.control is not None:
        parts.control.options = live.view
        parts.control.secret_files = machine.secret_files(config)

    def serve(loop: asyncio.AbstractEventLoop) -> Coroutine[Any, Any, None]:
        live.apply = lambda value, _: _apply(value, config, app, certificate, parts)
        loop.add_signal_handler(signal.SIGHUP, reloading(live, parts.ring))
        return _serve(config, app, certificate, parts)

    return run(serve, parts.lifecycle)


async def _serve(config: RouterConfig, app: RouterApp, certificate: Certificate | None, parts: Collaborators) -> None:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Bound here and not by uvicorn, which answers an address in use with an exit code of its own.
    with listening(config.host, config.port):
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
    server.take_leave()
    await asyncio.sleep(config.drain_notice)
    deadline = asyncio.get_running_loop().time() + config.drain_timeout
    # The port stays open meanwhile: a client that has not heard of it yet gets an answer that says where it stands.
    try:
        async with asyncio.timeout_at(deadline):
            await app.drain()
    except TimeoutError:
        log.warning("drain_deadline", open_requests=app.expire())
    server.should_exit = True
    # What clients have still to read of answers that are whole may take until the deadline too.
    await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()) + EXPIRY_SECONDS)
    server.force_exit = True


def _apply(
    value: RouterConfig, config: RouterConfig, app: RouterApp, certificate: Certificate | None, parts: Collaborators
) -> None:
    """SIGHUP: engines, clients' keys, certificate and timeouts are those of now. Open requests go on.

    Raises ValueError if something is wrong, and then everything stays as it was.
    """
    fresh = value.guard()
    if certificate is not None:
        certificate.check()
    members.become(config, value, parts.engines)
    app.guard.become(fresh)
    if certificate is not None:
        certificate.reload()
    parts.upstream.timeouts = value.timeouts()
    warn_of_open_secrets(value)
    log.info("reloaded", what="clients", names=sorted(app.guard.names))


if __name__ == "__main__":
    sys.exit(main())
