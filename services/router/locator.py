"""Which decode engine's tier holds how much of a prompt: asked of a metaserver, for a few milliseconds at most.

    node events ─▶ which tiers are up ─▶ their sessions ─▶ how keys are made ─┐
                                             a prompt's ids ─▶ keys ─▶ locate ─▶ pages per node ─▶ pages per engine

Whatever goes wrong here costs a preference, never a request: the engine is then chosen by load.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pegaflow.common import logs
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.attach import SessionList, Sessions
from pegaflow.common.wire.messages.catalogue import Locate, Located
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.fields import has_only_text, is_set
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.nodes import NodeEvents
from pegaflow.services.router.openai import ClientRequest, Endpoint
from pegaflow.services.router.schemes import names, place, schemes
from pegaflow.services.router.steps import Role

LEARN_S: Final = 5.0
"""Between two looks at the sessions of a tier: engines attach and leave without an event."""
BUDGET_S: Final = 1.0
"""Of a question on the wire. The wait for its answer is much shorter, but the socket is not to be replaced over it."""
PAUSE_S: Final = 1.0
"""After a metaserver was late: nobody waits for it meanwhile."""
WIDTH: Final = 16
"""Owners per key to be told: decode engines on more nodes than this share a prefix rarely."""
MAX_SCHEMES: Final = 4

log = logs.get(__name__)


class Locator:
    """Owns its sockets, on the loop that calls `start`. `told`: engine's base URL → node; `wait` in seconds."""

    def __init__(
        self,
        metaserver: str,
        nodes: NodeEvents,
        engines: Engines,
        metrics: RouterMetrics,
        told: Mapping[str, str],
        wait: float,
        ring: Keyring | None = None,
    ) -> None:
        self._metaserver, self._nodes, self._engines, self._metrics = metaserver, nodes, engines, metrics
        self._told, self._wait, self._ring = told, wait, ring
        self._tiers: dict[str, RpcClient] = {}  # by request endpoint
        self._learnt: dict[str, frozenset[KeyScheme]] = {}  # by request endpoint
        self._paused_until = 0.0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._factory = SocketFactory(self._ring)
        self._client = RpcClient(self._factory, self._loop, self._metaserver)
        self._learning = self._loop.create_task(self._learn())

    async def close(self) -> None:
        self._learning.cancel()
        await asyncio.gather(self._learning, return_exceptions=True)
        for client in (self._client, *self._tiers.values()):
            client.close()
        self._factory.close()

    @property
    def schemes(self) -> frozenset[KeyScheme]:
        return frozenset().union(*self._learnt.values())

    async def held(self, request: ClientRequest, ids: Sequence[int]) -> dict[str, int]:
        """Decode engine → pages of the prompt's beginning in its tier; empty where nothing is known in time."""
        if not ids or not _shareable(request):
            return {}
        nodes = self._nodes.endpoints
        placed = place(self._engines.names(Role.DECODE), nodes, self._told)
        known = sorted(self.schemes, key=lambda scheme: scheme.fingerprint)[:MAX_SCHEMES]
        if len(set(placed.values())) < 2 or not known or self._loop.time() < self._paused_until:
            return {}
        questions = [names(scheme, ids) for scheme in known]
        try:
            async with asyncio.timeout(self._wait):
                answers = await asyncio.gather(*(self._ask(keys) for keys in questions if keys))
        except (TimeoutError, PegaflowError) as error:
            self._paused_until = self._loop.time() + PAUSE_S
            self._metrics.located("late" if isinstance(error, TimeoutError) else "failed")
            return {}
        per_node: Counter[str] = Counter()
        for answer in answers:
            per_node |= answer
        found = {url: per_node[node] for url, node in placed.items() if per_node[node]}
        self._metrics.located("found" if found else "nowhere")
        return found

    async def _ask(self, keys: Sequence[bytes]) -> Counter[str]:
        """Pages per node. Raises PegaflowError."""
        message = Locate("", list(keys), 0, False, width=WIDTH)
        answer = await self._client.request(message, BUDGET_S)
        if not isinstance(answer, Located):
            return Counter()
        counts = Counter(answer.owners)
        return Counter({node: counts[number] for number, node in enumerate(answer.nodes)})

    async def _learn(self) -> None:
        while True:
            endpoints = set(self._nodes.endpoints.values()) - {""}
            for gone in self._tiers.keys() - endpoints:
                self._tiers.pop(gone).close()
                self._learnt.pop(gone, None)
            for new in endpoints - self._tiers.keys():
                try:
                    self._tiers[new] = RpcClient(self._factory, self._loop, new)
                except PegaflowError as error:
                    log.warning("cannot_connect", endpoint=new, code=error.code, text=error.text)
            for endpoint, client in self._tiers.items():
                client.send(Sessions(), LEARN_S / 2, partial(self._listed, endpoint))
            await self._nodes.moved(LEARN_S)

    def _listed(self, endpoint: str, answer: Any) -> None:
        if not isinstance(answer, SessionList) or endpoint not in self._tiers:
            return  # asked again; what was learnt stays, since a tier that stands still has lost nothing
        told = schemes(answer)
        if told != self._learnt.get(endpoint):
            self._learnt[endpoint] = told
            log.info("key_schemes", endpoint=endpoint, fingerprints=sorted(scheme.fingerprint.hex() for scheme in told))


def _shareable(request: ClientRequest) -> bool:
    """Whether the keys of this prompt follow from its ids alone."""
    if is_set(request.body, "cache_salt"):
        return False
    return request.endpoint is Endpoint.COMPLETIONS or has_only_text(request.body)
