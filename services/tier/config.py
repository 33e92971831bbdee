"""Options of the tier."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pegaflow.common.bus.sockets import check_endpoint
from pegaflow.common.config import duration, option, size
from pegaflow.common.pool import GRANULE
from pegaflow.common.runtime_dir import default_runtime_dir
from pegaflow.common.wire.errors import LocalError


def _endpoint(value: str) -> str | None:
    try:
        check_endpoint(value)
    except LocalError as error:
        return error.text
    return None


def _optional_tcp(value: str) -> str | None:
    if not value:
        return None
    return _endpoint(value) if value.startswith("tcp://") else f"{value!r}: expected tcp://HOST:PORT"


def _fingerprint(value: str) -> str | None:
    return None if not value or (len(value) == 32 and set(value) <= set("0123456789abcdef")) else "a fingerprint is 32 hex digits"


def _node(value: str) -> str | None:
    good = value and len(value) <= 64 and all(c.isalnum() or c in "-_." for c in value) and not value.startswith(".")
    return None if good else "letters, digits, - _ . and at most 64 of them"


def _timeout(value: float) -> str | None:
    return None if value > 0 else "must be above 0"


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One tier per node. Engines of the node use the ipc endpoints in `runtime_dir`; other nodes need the tcp ones."""

    node: str = option("node", help="name of this node, unique in the cluster", check=_node)
    runtime_dir: Path = option(Path(), help="where this node's processes meet: ipc sockets, lock files", parse=Path)
    pool_dir: Path = option(Path("/dev/shm/pegaflow"), help="where the pool lives: tmpfs or hugetlbfs", parse=Path)
    pool_size: int = option(4 << 30, help="bytes of the pool", parse=size)
    requests: str = option(
        "", help="tcp endpoint for other nodes' requests, for example tcp://10.0.0.1:7410", check=_optional_tcp
    )
    events: str = option("", help="tcp endpoint of the event stream for other nodes", check=_optional_tcp)
    control: str = option("", help="tcp endpoint for operators", check=_optional_tcp)
    advertise_host: str = option("", help="host that other nodes use in place of the bound one")
    metaserver: tuple[str, ...] = option((), help="metaserver request endpoint; repeat it for replicas", check=None)
    mover: bool = option(True, help="run the NIXL mover; without it pages stay on this node")
    ucx_net_devices: str = option("", help="UCX_NET_DEVICES of the mover, for example mlx5_0:1")
    ucx_tls: str = option("", help="UCX_TLS of the mover, for example rc,cuda_copy or tcp")
    fingerprint: str = option("", help="take only engines with this fingerprint (32 hex digits)", check=_fingerprint)
    drain_timeout: float = option(10.0, help="how long a drain waits for open loads and saves", parse=duration, check=_timeout)
    health_host: str = option("127.0.0.1", help="address of /health, /ready, /metrics, /version")
    health_port: int = option(0, help="port of the same; 0: off")
    log_level: str = option("info", help="debug, info, warning or error")

    def __post_init__(self) -> None:
        if self.runtime_dir == Path():
            object.__setattr__(self, "runtime_dir", default_runtime_dir(os.environ))
        if self.pool_size < GRANULE or self.pool_size % GRANULE:
            raise ValueError(f"pool_size {self.pool_size} is not a multiple of {GRANULE} bytes")
        for endpoint in self.metaserver:
            if wrong := _endpoint(endpoint):
                raise ValueError(f"metaserver {wrong}")
        if wrong := _endpoint(self.ipc("requests")):
            raise ValueError(f"runtime_dir is too long: {wrong}")

    def ipc(self, name: str) -> str:
        """The node-local endpoint of one socket."""
        return f"ipc://{self.runtime_dir.resolve()}/{name}.sock"

    @property
    def sessions_dir(self) -> Path:
        """Lock files of attached processes."""
        return self.runtime_dir / "sessions"
