"""Keeps the connector's errors out of vLLM: an exception in a hook would end the engine."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from pegaflow.connector.counters import Counters

LOGGED_IN_FULL = 20
"""Per hook. A mishap that comes with every step would fill the disk; the counter goes on."""

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Guarded(Protocol):
    """What a class with guarded hooks has to have."""

    _counters: Counters
    _log: logging.Logger


def guarded(otherwise: Callable[[], Any]) -> Callable[[Hook], Hook]:
    """Decorates a hook: what it raises is logged and counted, and the hook returns `otherwise()`."""

    def decorate(hook: Hook) -> Hook:
        name = hook.__name__
        seen = 0

        @functools.wraps(hook)
        def guard(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                seen += 1
                self._counters.add("hook_errors", label=name)
                if seen <= LOGGED_IN_FULL:
                    self._log.exception("hook_failed: %s; vLLM goes on without it", name)
                return otherwise()

        return cast(Hook, guard)

    return decorate
