"""Options of the metaserver."""

from __future__ import annotations

from dataclasses import dataclass

from pegaflow.common.bus.endpoint import check_endpoint
from pegaflow.common.bus.keyring import Keyring, keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.sockets import check_bind
from pegaflow.common.config import option
from pegaflow.common.endpoints import apart
from pegaflow.common.logs import LEVELS
from pegaflow.common.wire.errors import LocalError


def _endpoint(value: str) -> str | None:
    try:
        check_endpoint(value)
    except LocalError as error:
        return error.text
    return None


def _store(value: str) -> str | None:
    is_redis = value.startswith(("redis://", "rediss://", "unix://"))
    return None if value == "memory" or is_redis else "memory, or a URL of redis://, rediss:// or unix://"


def _prefix(value: str) -> str | None:
    return None if value and value.isprintable() and " " not in value else "a word without blanks"


def _port(value: int) -> str | None:
    return None if 0 <= value < 65536 else "a port is 0 (off) to 65535"


def _level(value: str) -> str | None:
    return None if value in LEVELS else f"one of {', '.join(LEVELS)}"


@dataclass(frozen=True, slots=True)
class MetaserverConfig:
    """Any number of metaservers may run; each copies all tiers that say hello to it."""

    node: str = option("metaserver", help="name of this metaserver in logs and events")
    requests: str = option("tcp://127.0.0.1:7400", help="endpoint for hello, locate and nodes", check=_endpoint)
    events: str = option("tcp://127.0.0.1:7401", help="endpoint of the event stream of nodes", check=_endpoint)
    control: str = option("tcp://127.0.0.1:7402", help="endpoint for operators", check=_endpoint)
    store: str = option(
        "memory", help="where the catalogue lies: memory, or redis://host:port/db shared by metaservers", check=_store
    )
    store_prefix: str = option("pegaflow", help="what the names of keys in a shared store begin with", check=_prefix)
    curve_key_file: str = option(
        "", help="this process's secret key (`pegaflow keys gen`); with it every tcp socket is encrypted"
    )
    curve_allowed: str = option("", help="keys that may come in: a file of lines KEY ROLE [NODE], or a folder of *.pub")
    allow_plaintext_network: bool = option(False, help="listen on networks without keys, for anybody to read and write")
    health_host: str = option("127.0.0.1", help="address of /health, /ready, /metrics, /version")
    health_port: int = option(0, help="port of the same; 0: off", check=_port)
    log_level: str = option("info", help="debug, info, warning or error", check=_level, reload=True)

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in ("requests", "events", "control")}
        apart(named, health_host=self.health_host, health_port=self.health_port)
        ring = self.keyring()  # read here, so that a wrong file is a config error, also for --check-config
        for endpoint in named.values():
            check_bind(endpoint, ring, self.allow_plaintext_network)

    def keyring(self) -> Keyring | None:
        """Reads the files. Raises `LocalError`."""
        return keyring(Role.METASERVER, self.curve_key_file, self.curve_allowed)
