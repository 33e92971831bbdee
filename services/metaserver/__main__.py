"""`pegaflow-metaserver`: where every page is, as told by the tiers that say hello."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from pegaflow.common import clock, logs, metrics
from pegaflow.common.config import load
from pegaflow.common.lifecycle import HealthServer, Lifecycle, run
from pegaflow.common.live_config import LiveConfig
from pegaflow.services.doors import DoorCollector
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.metrics import MetaserverMetrics
from pegaflow.services.metaserver.service import MetaserverService
from pegaflow.services.reload import reloading


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM, SIGINT or `drain`. Exit codes: 0, 70, 75 (port in use), 78 (configuration, addresses included)."""
    loaded = load(
        MetaserverConfig,
        section="metaserver",
        prog="pegaflow-metaserver",
        description="Tells tiers which tier holds which page.",
        argv=argv,
    )
    config, live = loaded.value, LiveConfig.of(loaded, "metaserver", argv)
    logs.setup("metaserver", config.node, config.log_level)
    lifecycle = Lifecycle("metaserver")
    return run(lambda loop: _serve(live, lifecycle, loop), lifecycle)


async def _serve(live: LiveConfig[MetaserverConfig], lifecycle: Lifecycle, loop: asyncio.AbstractEventLoop) -> None:
    config = live.value
    service = MetaserverService(config, lifecycle, loop, live.view)
    loop.add_signal_handler(signal.SIGHUP, reloading(live, service.ring))
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
        metrics.registry().register(DoorCollector("metaserver", lambda: service.kept))
        await lifecycle.wait_drain()
    finally:
        service.close()
        await service.ended()
        health.close()


if __name__ == "__main__":
    sys.exit(main())
