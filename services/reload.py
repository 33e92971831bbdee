"""SIGHUP, as far as it is the same for every service: the list of keys is read anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pegaflow.common import logs
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.live_config import LiveConfig
from pegaflow.common.wire.errors import LocalError

log = logs.get(__name__)


def reloading(live: LiveConfig[Any], ring: Keyring | None) -> Callable[[], None]:
    """What SIGHUP does: the configuration as a whole or not at all, and the list of keys.

    That list waits for nothing else to be right: a key that is struck off has to go at once.
    """

    def reload() -> None:
        live.reload()
        reload_keys(ring)

    return reload


def reload_keys(ring: Keyring | None) -> None:
    """What is wrong now is logged, and the list that was right before stays in use.

    A key that is struck off asks nothing more at once, on open connections too; events that it has subscribed to go on until its
    connection ends (docs/security.md).
    """
    if ring is None:
        return
    try:
        came, went = ring.reload()
    except LocalError as error:
        log.error("reload_failed", what="keys", code=error.code, text=error.text)
    else:
        log.info("reloaded", what="keys", listed=len(ring.listed), came=came, went=went)
