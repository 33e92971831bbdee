"""What a tier says of itself: to whoever looks, and to `pegaflow doctor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pegaflow.common import machine
from pegaflow.common.bus.rpc import Request
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.version import package_version
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.operate import Document
from pegaflow.services.tier.carrier import Carrier
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.disk.threads import apart
from pegaflow.services.tier.mover import transports
from pegaflow.services.tier.sessions import Sessions
from pegaflow.services.tier.state import TierState

DISTRIBUTIONS = ("nixl", "numpy", "xxhash")


async def tell(request: Request, config: TierConfig, movers: Sequence[int], told: Callable[[dict[str, Any]], Document]) -> None:
    """Answers with all of it. In a thread: the kernel's list of connections may be long, and folders may hang."""
    try:
        found = await apart(lambda: facts(config, movers))
    except Exception as error:
        request.fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
    else:
        request.reply(told(found))


def facts(config: TierConfig, movers: Sequence[int]) -> dict[str, Any]:
    """`movers`: their process ids. JSON-able."""
    paths = {
        "runtime_dir": config.runtime_dir,
        "sessions": config.sessions_dir,
        "pool_dir": config.pool_dir,
        "pool": config.pool_dir / config.node,
    }
    paths |= machine.secret_files(config)
    if config.disk_dir:
        paths["disk"] = Path(config.disk_dir) / config.node
    return {
        **machine.facts(paths, DISTRIBUTIONS),
        "pool_bytes": config.pool_size,
        "movers": [found for pid in movers if (found := transports.in_use(pid))],
    }


def engines(sessions: Sessions) -> list[dict[str, Any]]:
    """How each attached engine names its pages, and what it runs on."""
    return [
        {
            "engine": session.engine,
            "fingerprint": session.fingerprint.hex(),
            "factors": dict(session.factors),
            "versions": dict(session.versions),
            "complete": session.complete,
            "stale": session.stale,
        }
        for session in sessions.by_number.values()
    ]


def status(state: TierState, lifecycle: Lifecycle, carrier: Carrier, uptime_ms: int) -> dict[str, Any]:
    """The status document, but for what only the service knows. JSON-able."""
    told = state.dump()
    told["disk"]["threads"] = carrier.disk_busy()
    told.update(
        state=str(lifecycle.state),
        reasons=lifecycle.reasons(),
        uptime_ms=uptime_ms,
        package=package_version(),
        mover=carrier.mover_counts(),
        files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
    )
    return told
