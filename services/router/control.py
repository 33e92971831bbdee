"""The router's control socket: what every service answers there, and engines that are added and removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from pegaflow.common import clock, machine
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import Lifecycle, StartError
from pegaflow.common.live_config import Options
from pegaflow.common.version import package_version
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.common.wire.messages import operate
from pegaflow.common.wire.messages.facts import Facts
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.control import commanded
from pegaflow.services.doors import Kept
from pegaflow.services.router import members
from pegaflow.services.router.engines import Engines


class ControlSocket:
    """Owns its socket, on the loop that calls `start`."""

    def __init__(
        self,
        endpoint: str,
        node: str,
        engines: Engines,
        lifecycle: Lifecycle,
        ring: Keyring | None = None,
        plaintext_network: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self._ring, self._plaintext_network = ring, plaintext_network
        self._server: RpcServer | None = None
        self.options: Options = list
        self.secret_files: dict[str, Path] = {}
        self._node, self._engines, self._lifecycle = node, engines, lifecycle
        self._epoch = clock.random_u64()
        self._started_at = clock.now()

    async def start(self) -> None:
        """Raises StartError with `port_in_use` or `bad_endpoint`."""
        self._factory = SocketFactory(self._ring, plaintext_network=self._plaintext_network)
        try:
            loop = asyncio.get_running_loop()
            self._server = RpcServer(self._factory, loop, self.endpoint, self._epoch, self._commanded, clock.now)
        except LocalError as error:
            self._factory.close()
            raise StartError(error.code, error.text) from None
        self.endpoint = self._server.endpoint

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._factory.close()

    def _commanded(self, request: Request) -> None:
        match request.message:
            case operate.EngineAdd(role, url) | operate.EngineRemove(role, url):
                change = members.add if isinstance(request.message, operate.EngineAdd) else members.remove
                try:
                    change(self._engines, role, url)
                except ValueError as error:
                    request.fail(ErrorCode.BAD_MESSAGE, str(error))
                else:
                    request.reply(Done())
            case _:
                commanded(request, self._lifecycle, self._asked)

    @property
    def kept(self) -> Kept:
        """What was kept out; nothing before the start."""
        return Kept(dict(self._factory.refused), self._server.forbidden) if self._server is not None else Kept({}, 0)

    def _asked(self, request: Request) -> None:
        if isinstance(request.message, Facts):
            told = machine.facts(self.secret_files, ("aiohttp", "falcon", "uvicorn"))
            told |= {"options": self.options(), "endpoints": {"control": self.endpoint}, "engines": self._engines.view()}
            request.reply(operate.Document("router", self._node, self._epoch, json.dumps(told)))
            return
        uptime_ms = int((clock.now() - self._started_at) * 1e3)
        if isinstance(request.message, operate.Ping):
            request.reply(operate.Pong("router", self._node, self._epoch, package_version(), uptime_ms))
            return
        document = {
            "state": str(self._lifecycle.state),
            "reasons": self._lifecycle.reasons(),
            "uptime_ms": uptime_ms,
            "package": package_version(),
            "engines": self._engines.view(),
            **self.kept._asdict(),
        }
        request.reply(operate.Document("router", self._node, self._epoch, json.dumps(document)))
