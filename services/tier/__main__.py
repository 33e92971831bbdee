"""`pegaflow-tier`: the process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pegaflow.common import logs, metrics
from pegaflow.common.config import load
from pegaflow.common.health import HealthServer
from pegaflow.common.lifecycle import Lifecycle, run
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
    config = loaded.value
    logs.setup("tier", config.node, config.log_level)
    lifecycle = Lifecycle("tier")

    async def serve(loop: asyncio.AbstractEventLoop) -> None:
        service = TierService(config, lifecycle, loop)
        health = HealthServer(lifecycle, config.health_host, config.health_port)
        try:
            await health.start()
            await service.start()
            metrics.registry().register(TierCollector(service.state))
            await lifecycle.wait_drain()
            await service.drain()
        finally:
            await service.close()
            await health.close()

    return run(serve, lifecycle)


if __name__ == "__main__":
    sys.exit(main())
