"""Options of the tier."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pegaflow.common.bus.endpoint import check_endpoint, parse_endpoint, without_key
from pegaflow.common.bus.keyring import Keyring, check_connects, keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.sockets import check_bind
from pegaflow.common.config import duration, option, size
from pegaflow.common.endpoints import apart, is_local
from pegaflow.common.logs import LEVELS
from pegaflow.common.pool import GRANULE
from pegaflow.common.runtime_dir import default_runtime_dir
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.services.tier.disk.cipher import load_cipher
from pegaflow.services.tier.eviction.policy import POLICIES
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.verifier import OnLoad


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


def _count(value: int) -> str | None:
    return None if value > 0 else "must be above 0"


def _none_or_more(value: int) -> str | None:
    return None if value >= 0 else "must not be below 0"


def _fraction(value: float) -> str | None:
    return None if 0 < value <= 1 else "must be above 0 and at most 1"


def _eviction(value: str) -> str | None:
    return None if value in POLICIES else f"{value!r}: expected one of {', '.join(POLICIES)}"


def _quota(value: str) -> tuple[bytes, int]:
    """Raises ValueError for what is not FINGERPRINT=SIZE."""
    name, _, amount = value.partition("=")
    if not name or _fingerprint(name):
        raise ValueError(f"{value!r}: expected FINGERPRINT=SIZE, the fingerprint as 32 hex digits")
    return bytes.fromhex(name), size(amount)


def _quotas(values: tuple[str, ...]) -> str | None:
    try:
        names = [_quota(value)[0] for value in values]
    except ValueError as error:
        return str(error)
    return None if len(names) == len(set(names)) else "a fingerprint has two quotas"


def _port(value: int) -> str | None:
    return None if 0 <= value < 65536 else "a port is 0 (off) to 65535"


def _level(value: str) -> str | None:
    return None if value in LEVELS else f"one of {', '.join(LEVELS)}"


def _timeout(value: float) -> str | None:
    return None if value > 0 else "must be above 0"


MIN_DISK = 16 << 20


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One tier per node. Engines of the node use the ipc endpoints in `runtime_dir`; other nodes need the tcp ones."""

    node: str = option("node", help="name of this node, unique in the cluster", check=_node)
    runtime_dir: Path = option(Path(), help="where this node's processes meet: ipc sockets, lock files", parse=Path)
    pool_dir: Path = option(Path("/dev/shm/pegaflow"), help="where the pool lives: tmpfs or hugetlbfs", parse=Path)
    pool_size: int = option(4 << 30, help="bytes of the pool", parse=size)
    eviction: str = option("lru", help="which pages go first: lru or s3fifo", check=_eviction)
    quota: tuple[str, ...] = option(
        (), help="FINGERPRINT=SIZE, what a namespace may have at most; repeat it", check=_quotas, reload=True
    )
    quota_default: float = option(
        1.0, help="the same for namespaces without a quota, fraction of the pool", check=_fraction, reload=True
    )
    evict_high: float = option(
        1.0, help="evict ahead of need above this fraction of the pool; 1: never", check=_fraction, reload=True
    )
    evict_low: float = option(1.0, help="down to this fraction", check=_fraction, reload=True)
    keep_share: float = option(0.25, help="fraction of the pool, and of the disk, that keep requests may hold", check=_fraction)
    disk_dir: str = option("", help="where pages go that leave memory: a folder on a local disk; empty: nowhere")
    disk_size: int = option(0, help="bytes that they may take there", parse=size)
    disk_key_file: str = option(
        "", help="key of 64 hex digits with which everything there is encrypted (AES-GCM); empty: it is not"
    )
    disk_queue: int = option(256 << 20, help="bytes on their way to disk, and from it, at most", parse=size, check=_count)
    disk_threads: int = option(2, help="threads that read and write there", check=_count)
    requests: str = option(
        "", help="tcp endpoint for other nodes' requests, for example tcp://10.0.0.1:7410", check=_optional_tcp
    )
    events: str = option("", help="tcp endpoint of the event stream for other nodes", check=_optional_tcp)
    control: str = option("", help="tcp endpoint for operators", check=_optional_tcp)
    advertise_host: str = option("", help="host that other nodes use in place of the bound one")
    metaserver: tuple[str, ...] = option((), help="metaserver request endpoint; repeat it for replicas", check=None)
    warm_restart: bool = option(True, help="take over the pages that the tier before left in the pool, and leave one's own")
    verify_on_load: OnLoad = option(
        OnLoad.NEVER, help="verify local pages before an engine loads them: always, sample or never", parse=OnLoad, reload=True
    )
    verify_sample: int = option(64, help="with verify_on_load = sample: one page in so many", check=_count, reload=True)
    scrub_rate: int = option(
        32 << 20, help="bytes a second that the scrubber verifies in the background; 0: off", parse=size, reload=True
    )
    hash_threads: int = option(
        0, help="threads that compute checksums of pages; 0: half of the cores, at most 4", check=_none_or_more
    )
    history: int = option(16 << 20, help="bytes of what became of pages and lookups, for pegaflow page and why", parse=size)
    mover: bool = option(True, help="run the NIXL mover; without it pages stay on this node")
    ucx_net_devices: str = option("", help="UCX_NET_DEVICES of the mover, for example mlx5_0:1")
    ucx_tls: str = option("", help="UCX_TLS of the mover, for example rc,cuda_copy or tcp")
    curve_key_file: str = option(
        "", help="this process's secret key (`pegaflow keys gen`); with it every tcp socket is encrypted"
    )
    curve_allowed: str = option("", help="keys that may come in: a file of lines KEY ROLE [NODE], or a folder of *.pub")
    allow_plaintext_network: bool = option(False, help="listen on networks without keys, for anybody to read and write")
    fingerprint: str = option("", help="take only engines with this fingerprint (32 hex digits)", check=_fingerprint)
    drain_timeout: float = option(
        10.0, help="how long a drain waits for open loads and saves", parse=duration, check=_timeout, reload=True
    )
    health_host: str = option("127.0.0.1", help="address of /health, /ready, /metrics, /version")
    health_port: int = option(0, help="port of the same; 0: off", check=_port)
    log_level: str = option("info", help="debug, info, warning or error", check=_level, reload=True)

    def __post_init__(self) -> None:
        if self.runtime_dir == Path():
            object.__setattr__(self, "runtime_dir", default_runtime_dir(os.environ))
        if self.pool_size < GRANULE or self.pool_size % GRANULE:
            raise ValueError(f"pool_size {self.pool_size} is not a multiple of {GRANULE} bytes")
        if self.evict_low > self.evict_high:
            raise ValueError(f"evict_low {self.evict_low:g} is above evict_high {self.evict_high:g}")
        self._check_disk()
        for endpoint in self.metaserver:
            if wrong := _endpoint(endpoint):
                raise ValueError(f"metaserver {wrong}")
        if wrong := _endpoint(self.ipc("requests")):
            raise ValueError(f"runtime_dir is too long: {wrong}")
        self._check_quotas()
        self._check_network()
        self._check_keys()

    def _check_disk(self) -> None:
        if self.disk_key_file and not self.disk_dir:
            raise ValueError("disk_key_file is of no use without disk_dir")
        load_cipher(self.disk_key_file)
        if bool(self.disk_dir) != bool(self.disk_size):
            raise ValueError(
                f"disk_dir is {self.disk_dir!r} and disk_size {self.disk_size}: they go together, where pages go and how much"
            )
        if not self.disk_dir:
            return
        if self.disk_size < MIN_DISK:
            raise ValueError(f"disk_size {self.disk_size} is below {MIN_DISK >> 20} MiB")
        if self.evict_high >= 1:
            raise ValueError(
                f"disk_dir is {self.disk_dir!r}, but evict_high {self.evict_high:g}: pages go to disk when they are evicted"
                " ahead of need, which begins below 1"
            )

    def _check_quotas(self) -> None:
        for text in self.quota:
            name, amount = _quota(text)
            if amount > self.pool_size:
                raise ValueError(f"quota of {name.hex()} is {amount} bytes, pool_size {self.pool_size}")

    def _check_network(self) -> None:
        """What other nodes are told must be what they can use."""
        if self.advertise_host and not (self.requests or self.events or self.control):
            raise ValueError(f"advertise_host is {self.advertise_host!r}, but requests, events and control are empty")
        if self.metaserver and bool(self.requests) != bool(self.events):
            raise ValueError(
                f"requests is {self.requests!r} and events {self.events!r}: another node needs both, to ask and to hear"
            )
        for endpoint in self.metaserver:
            if not self.requests and not is_local(endpoint):
                raise ValueError(f"metaserver is {endpoint}, but requests is empty: other nodes could not read from this one")
        named = {name: getattr(self, name) for name in ("requests", "events", "control")}
        apart(named, health_host=self.health_host, health_port=self.health_port)

    def _check_keys(self) -> None:
        ring = self.keyring()  # read here, so that a wrong file is a config error, also for --check-config
        for endpoint in filter(None, (self.requests, self.events, self.control)):
            check_bind(endpoint, ring, self.allow_plaintext_network)
        for endpoint in self.metaserver:
            check_connects(ring, endpoint)
            if parse_endpoint(endpoint).key and not self.requests:
                raise LocalError(
                    ErrorCode.BAD_ENDPOINT,
                    f"metaserver is {without_key(endpoint)} and requests is empty: others would be told ipc paths, which have no "
                    "key; with curve_key_file set requests and events to tcp://…",
                )

    def keyring(self) -> Keyring | None:
        """Reads the files. Raises `LocalError`."""
        return keyring(Role.TIER, self.curve_key_file, self.curve_allowed)

    def ipc(self, name: str) -> str:
        """The node-local endpoint of one socket."""
        return f"ipc://{self.runtime_dir.resolve()}/{name}.sock"

    @property
    def verify_every(self) -> int:
        """One in so many local pages is verified before it is loaded; 0: none."""
        return {OnLoad.ALWAYS: 1, OnLoad.SAMPLE: self.verify_sample, OnLoad.NEVER: 0}[self.verify_on_load]

    @property
    def space(self) -> SpaceOptions:
        """What the pure tier needs to know of the pool's division."""
        quotas = dict(map(_quota, self.quota))
        return SpaceOptions(self.eviction, quotas, self.quota_default, self.evict_high, self.evict_low, self.keep_share)

    @property
    def sessions_dir(self) -> Path:
        """Lock files of attached processes."""
        return self.runtime_dir / "sessions"
