"""The connector's two buses, one for each half. Both are a `Link` with work handed through."""

from pegaflow.connector.rank_bus import RankBus
from pegaflow.connector.scheduler_bus import SchedulerBus

__all__ = ["RankBus", "SchedulerBus"]
