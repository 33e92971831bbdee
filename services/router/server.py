"""The HTTP server under the router's application: uvicorn, as the router needs it."""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import Generator
from typing import Any, cast

import uvicorn
from pegaflow.services.router.app import RouterApp
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.connection import ClientConnection

EXPIRY_SECONDS = 2
"""After the drain deadline: for the error frames of what was not done to reach their clients."""


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which raises SIGTERM again instead of returning from `serve`."""

    def __init__(self, app: RouterApp, config: RouterConfig, context: ssl.SSLContext | None = None) -> None:
        """`context`: for TLS."""
        protocol = functools.partial(
            ClientConnection,
            head_seconds=config.client_timeout,
            stall_seconds=config.client_stall_timeout,
            room=app.connections,
            metrics=app.metrics,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, protocol),  # uvicorn only calls it
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=config.max_header,
                ssl_context_factory=None if context is None else lambda _config, _default: context,
                timeout_graceful_shutdown=int(config.drain_timeout) + EXPIRY_SECONDS + 1,
            )
        )

    def take_leave(self) -> None:
        """From now on each answer ends its connection, so that clients go elsewhere of their own accord.

        A connection that is cut while it is idle may carry a request that is already on its way.
        """
        self.config.encoded_headers.append((b"connection", b"close"))  # what uvicorn sends with every answer ...
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]  # ... in a second

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
