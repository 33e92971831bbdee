"""`pegaflow-tier`: the process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pegaflow.common import logs, metrics
from pegaflow.common.config import load
from pegaflow.common.health import HealthServer
from pegaflow.common.lifecycle import Lifecycle, run
from pegaflow.common.live_config import LiveConfig
from pegaflow.services.doors import DoorCollector
from pegaflow.services.reload import reloading
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.exposition import TierCollector
from pegaflow.services.tier.service import TierService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a tier until SIGTERM. Exit code 0; 75 if it cannot start now; 78 if the configuration is wrong."""
    loaded = load(
        TierConfig,
        section="tier",
        prog="pegaflow-tier",
        description="Keeps the KV pages of one node: engines save into it and load from it, other tiers read from it.",
        argv=argv,
    )
    config, live = loaded.value, LiveConfig.of(loaded, "tier", argv)
    logs.setup("tier", config.node, config.log_level)
    lifecycle = Lifecycle("tier")

    async def serve(loop: asyncio.AbstractEventLoop) -> None:
        service = TierService(config, lifecycle, loop, live.view)
        live.apply = service.retune
        loop.add_signal_handler(signal.SIGHUP, reloading(live, service.ring))
        health = HealthServer(lifecycle, config.health_host, config.health_port)
        try:
            health.start()
            if not await _unless_drained(service.start(), lifecycle):
                return
            metrics.registry().register(TierCollector(service.state, service.mover_counts, service.metaserver_counts))
            metrics.registry().register(DoorCollector("tier", lambda: service.kept))
            await lifecycle.wait_drain()
            await service.drain()
        finally:
            await service.close()
            health.close()

    return run(serve, lifecycle)


async def _unless_drained(starting: Coroutine[Any, Any, None], lifecycle: Lifecycle) -> bool:
    """Runs the start to its end; False if a drain came first, which cancels it (a mover may take long to come up)."""
    start, drain = asyncio.ensure_future(starting), asyncio.ensure_future(lifecycle.wait_drain())
    await asyncio.wait({start, drain}, return_when=asyncio.FIRST_COMPLETED)
    if start.done():
        drain.cancel()
        start.result()
        return True
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await start
    return False


if __name__ == "__main__":
    sys.exit(main())
