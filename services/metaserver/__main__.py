"""`pegaflow-metaserver`: where every page is, as told by the tiers that say hello."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pegaflow.common import clock, logs
from pegaflow.common.config import load
from pegaflow.common.lifecycle import HealthServer, Lifecycle, run
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.metrics import MetaserverMetrics
from pegaflow.services.metaserver.service import MetaserverService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM, SIGINT or `drain`. Exit codes: 0, 70, 75 (port in use), 78 (configuration)."""
    config = load(
        MetaserverConfig,
        section="metaserver",
        prog="pegaflow-metaserver",
        description="Tells tiers which tier holds which page.",
        argv=argv,
    ).value
    logs.setup("metaserver", config.node, config.log_level)
    lifecycle = Lifecycle("metaserver")
    return run(lambda loop: _serve(config, lifecycle, loop), lifecycle)


async def _serve(config: MetaserverConfig, lifecycle: Lifecycle, loop: asyncio.AbstractEventLoop) -> None:
    service = MetaserverService(config, lifecycle, loop)
    shown = MetaserverMetrics()
    health = HealthServer(
        lifecycle,
        config.health_host,
        config.health_port,
        render=lambda: shown.render(service.state, service.malformed, clock.now()),
    )
    try:
        health.start()
        service.start()
        await lifecycle.wait_drain()
    finally:
        service.close()
        await service.ended()
        health.close()


if __name__ == "__main__":
    sys.exit(main())
