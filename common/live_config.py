"""The configuration in use: read again on SIGHUP, changed where an option says that it can be.

    live = LiveConfig.of(load(TierConfig, section="tier", …), "tier", argv)
    live.apply = service.retune
    loop.add_signal_handler(signal.SIGHUP, live.reload)

A reload is all or nothing: what cannot be read, contradicts itself or is refused by the service is logged, and everything stays
as it was. A changed option that only counts from the next start is logged and keeps its old value.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from pegaflow.common import logs
from pegaflow.common.config import ConfigError, Loaded, resolve
from pegaflow.common.options import info_of
from pegaflow.common.secrets import without_secrets
from pegaflow.common.wire.errors import LocalError

T = TypeVar("T")

Options = Callable[[], list[dict[str, Any]]]
"""Every option in use, as `LiveConfig.view` says."""

log = logs.get(__name__)


def _nothing(value: Any, changed: frozenset[str]) -> None:
    pass


class LiveConfig(Generic[T]):
    """`value` is what counts now, `sources` where each option comes from.

    `apply(value, changed)` takes new values into use; it raises ValueError or LocalError, and then changes nothing. It is
    called at every reload, also if no option has changed: files that options name may have.
    """

    def __init__(self, loaded: Loaded[T], again: Callable[[], Loaded[T]]) -> None:
        """`again` reads all layers anew; raises ConfigError."""
        self.value = loaded.value
        self.sources: Mapping[str, str] = loaded.sources
        self._again = again
        self.apply: Callable[[T, frozenset[str]], None] = _nothing

    @classmethod
    def of(cls, loaded: Loaded[T], section: str, argv: Sequence[str] | None) -> LiveConfig[T]:
        """Of a service's main(): reads what `load` read. `argv` None: the process's."""
        arguments = tuple(sys.argv[1:] if argv is None else argv)
        return cls(loaded, lambda: resolve(type(loaded.value), section=section, argv=arguments, environ=os.environ))

    def reload(self) -> bool:
        """False: refused; the log says why."""
        try:
            loaded = self._again()
            wanted, kept = self._compared(loaded.value)
            # Valid as a mixture, too: a new watermark may not fit a size that has to wait for the next start.
            value = dataclasses.replace(self.value, **wanted)  # type: ignore[type-var]
            self.apply(value, frozenset(wanted))
        except (ConfigError, LocalError, ValueError) as error:
            log.error("reload_failed", what="config", code=ConfigError.code, text=str(error))
            return False
        for name in kept:
            in_use, wanted_then = (without_secrets(_shown(config, name), name) for config in (self.value, loaded.value))
            log.warning("needs_restart", option=name, in_use=in_use, wanted=wanted_then)
        self.value = value
        self.sources = {name: self.sources[name] if name in kept else source for name, source in loaded.sources.items()}
        if "log_level" in wanted:
            logs.set_level(wanted["log_level"])
        log.info("reloaded", what="config", changed=sorted(wanted))
        return True

    def _compared(self, new: T) -> tuple[dict[str, Any], list[str]]:
        """What a reload changes, and the names of what it cannot."""
        wanted: dict[str, Any] = {}
        kept: list[str] = []
        for field in dataclasses.fields(self.value):  # type: ignore[arg-type]
            value = getattr(new, field.name)
            if value == getattr(self.value, field.name):
                continue
            if info_of(field).reload:
                wanted[field.name] = value
            else:
                kept.append(field.name)
        return wanted, kept

    def view(self) -> list[dict[str, Any]]:
        """Every option for people and programs, JSON-able: name, value, source, reloadable. A secret shows whether it is set."""
        return options_of(self.value, self.sources)


def options_of(value: Any, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """As `LiveConfig.view`, of any configuration."""
    found = [
        {
            "name": field.name,
            "value": _shown(value, field.name),
            "source": sources[field.name],
            "reloadable": info_of(field).reload,
        }
        for field in dataclasses.fields(value)
    ]
    return [without_secrets(option) for option in found]


def _shown(config: Any, name: str) -> Any:
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    value = getattr(config, name)
    if info_of(field).secret:
        return "(set)" if value else "(not set)"
    return _plain(value)


def _plain(value: Any) -> Any:
    """JSON-able."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
