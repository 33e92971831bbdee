"""Says which of the router's secrets other users of the machine could read."""

from __future__ import annotations

from pathlib import Path

from pegaflow.common import logs
from pegaflow.common.private import shared_secret
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.services.router.config import RouterConfig

log = logs.get(__name__)


def warn_of_open_secrets(config: RouterConfig) -> None:
    """Logs `secret_open` with `unsafe_path` for each.

    Nothing is refused, unlike the keys that only we make: a certificate's key is often its group's (0640, `ssl-cert`), and what
    an orchestrator mounts has its modes. To refuse them would end routers that run.
    """
    for option in ("api_keys_file", "tls_key"):
        name = getattr(config, option)
        if name and (why := shared_secret(Path(name))):
            log.warning("secret_open", code=ErrorCode.UNSAFE_PATH, option=option, text=why)
