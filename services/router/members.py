"""Engines that come and go while the router runs: by a reload of its configuration, or by the control socket."""

from __future__ import annotations

from pegaflow.common import logs
from pegaflow.services.router.config import RouterConfig, base_url
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.failures import named
from pegaflow.services.router.steps import Role

log = logs.get(__name__)


def become(config: RouterConfig, value: RouterConfig, engines: Engines) -> None:
    """Route to the engines that `value` lists; `config` is that of the start. Raises ValueError, and then changes nothing.

    What the control socket changed is forgotten.
    """
    if bool(value.engine) != bool(config.engine):
        raise ValueError("mixed engines need a restart to take turns with P/D")
    change = engines.become(value.listed())
    log.info("reloaded", what="engines", added=change.added, removed=change.removed)


def add(engines: Engines, role: str, url: str) -> None:
    """Raises ValueError saying what is wrong; nothing when it is there already."""
    kind, name = _named(engines, role, url)
    if engines.add(kind, name):
        log.info("engine_added", role=kind, engine=name)


def remove(engines: Engines, role: str, url: str) -> None:
    """The engine gets nothing more; its open requests go on. Raises ValueError where there is no such engine."""
    kind, name = _named(engines, role, url)
    if not engines.remove(kind, name):
        raise ValueError(f"no {named(kind)} {name}; there are: {', '.join(sorted(engines.names(kind))) or 'none'}")
    log.info("engine_removed", role=kind, engine=name)


def _named(engines: Engines, role: str, url: str) -> tuple[Role, str]:
    if role not in engines.roles:
        raise ValueError(f"role {role[:32]!r}: this router has {', '.join(sorted(engines.roles))}")
    return Role(role), base_url(url[:2048])
