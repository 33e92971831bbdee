"""Engines that come and go while the router runs: by a reload of its configuration, or by the control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pegaflow.common import logs
from pegaflow.common.config import ConfigError, resolve
from pegaflow.services.router.config import RouterConfig, base_url
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.failures import named
from pegaflow.services.router.steps import Role

log = logs.get(__name__)


def reload(config: RouterConfig, argv: Sequence[str], environ: Mapping[str, str], engines: Engines) -> bool:
    """Read the configuration again and route to the engines that it lists now; False: it cannot be used, nothing changed.

    Everything else in it counts from the next start. What the control socket changed is forgotten.
    """
    try:
        loaded = resolve(RouterConfig, section="router", prog="pegaflow-router", argv=argv, environ=environ).value
    except ConfigError as error:
        log.error("reload_failed", what="engines", code=error.code, text=str(error))
        return False
    if bool(loaded.engine) != bool(config.engine):
        log.error(
            "reload_failed", what="engines", code=ConfigError.code, text="mixed engines need a restart to take turns with P/D"
        )
        return False
    try:
        change = engines.become(loaded.listed())
    except ValueError as error:  # the list of upstreams is that of the start
        log.error("reload_failed", what="engines", code=ConfigError.code, text=str(error))
        return False
    log.info("reloaded", what="engines", added=change.added, removed=change.removed)
    return True


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
