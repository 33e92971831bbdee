"""The router's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pegaflow.common.bus.endpoint import check_endpoint
from pegaflow.common.bus.keyring import Keyring, check_connects, keyring
from pegaflow.common.bus.roles import Role as BusRole
from pegaflow.common.bus.sockets import check_bind
from pegaflow.common.config import duration, option, size
from pegaflow.common.endpoints import apart
from pegaflow.common.logs import LEVELS
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.router.allowed import Allowed, HostPort
from pegaflow.services.router.breaker import BreakerSettings
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.guard import Guard
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode, Resume, Unsplicable
from pegaflow.services.router.policy import Policy
from pegaflow.services.router.steps import Role
from pegaflow.services.router.tls import Certificate
from pegaflow.services.router.upstream import Timeouts


def _urls(values: tuple[str, ...]) -> str | None:
    for value in values:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            return f"{value!r} is not a base URL such as http://host:8000"
        try:
            HostPort.of_url(value)
        except ValueError as error:
            return f"{value!r} is not a base URL: {error}"
    if len(set(values)) != len(values):
        return "the same engine is listed twice"
    return None


def _url(value: str) -> str:
    return value.strip().rstrip("/")


def _placed(values: tuple[str, ...]) -> str | None:
    for value in values:
        url, mark, node = value.rpartition("=")
        if not mark or not node or _urls((_url(url),)) is not None:
            return f"{value!r} is not URL=NODE such as http://host:8000=node-a"
    return None


def base_url(value: str) -> str:
    """An engine's base URL as the options take it. Raises ValueError."""
    url = _url(value)
    complaint = _urls((url,))
    if complaint is not None:
        raise ValueError(complaint)
    return url


def _upstreams(values: tuple[str, ...]) -> str | None:
    try:
        for value in values:
            HostPort.parse(value)
    except ValueError as error:
        return str(error)
    return None


def _list(values: tuple[str, ...]) -> str:
    return ", ".join(values) or "empty"


def _printable(value: str) -> str | None:
    return None if value.isascii() and value.isprintable() else "must be printable ASCII"


def _positive(value: float) -> str | None:
    return None if value > 0 else "must be above 0"


def _not_negative(value: float) -> str | None:
    return None if value >= 0 else "must not be negative"


def _port(value: int) -> str | None:
    return None if 0 <= value < 65536 else "no port"


def _endpoint(value: str) -> str | None:
    try:
        if value:
            check_endpoint(value)
    except LocalError as error:
        return error.text
    return None


def _level(value: str) -> str | None:
    return None if value in LEVELS else f"must be one of {', '.join(LEVELS)}"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Durations in seconds, sizes in bytes, lengths in tokens."""

    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(8000, help="port to listen on; 0: any", check=_port)
    prefill: tuple[str, ...] = option((), help="base URL of a prefill engine; repeatable", parse=_url, check=_urls, reload=True)
    decode: tuple[str, ...] = option((), help="base URL of a decode engine; repeatable", parse=_url, check=_urls, reload=True)
    engine: tuple[str, ...] = option((), help="base URL of a mixed engine; repeatable", parse=_url, check=_urls, reload=True)
    policy: Policy = option(Policy.LEAST_LOADED, help="which engine of a role gets a request")
    pd_first_token: bool = option(False, help="forward the prefill engine's token, so that decode never prefills")
    pd_decode_api: DecodeApi = option(DecodeApi.AUTO, help="how chat ids reach the decode engine")
    pd_max_model_len: int | None = option(None, help="tokens a model takes; default: what engines say", check=_positive)
    pd_unsplicable: Unsplicable = option(Unsplicable.REPLAY, help="what to do with fields that cannot be split")
    pd_flow_retries: int = option(1, help="how often a failed flow is begun again", check=_not_negative)
    pd_resume: Resume = option(Resume.GREEDY, help="which streams another decode engine continues when theirs is lost")
    retry_ratio: float = option(
        0.2, help="retries that a request earns for all of them, beyond a reserve of 10", check=_not_negative
    )
    breaker_failures: int = option(5, help="failures in a row after which an engine gets a pause; 0: never", check=_not_negative)
    breaker_pause: float = option(5.0, help="its first pause; later ones double", parse=duration, check=_positive)
    connect_timeout: float = option(5.0, help="to connect to an engine", parse=duration, check=_positive, reload=True)
    prefill_timeout: float = option(300.0, help="for the prefill engine's answer", parse=duration, check=_positive, reload=True)
    answer_timeout: float = option(
        3600.0, help="for an answer that is not streamed", parse=duration, check=_positive, reload=True
    )
    first_byte_timeout: float = option(
        300.0, help="before a stream's first byte: a decode engine's queue", parse=duration, check=_positive, reload=True
    )
    idle_timeout: float = option(300.0, help="of silence within a stream", parse=duration, check=_positive, reload=True)
    health_interval: float = option(1.0, help="between health checks of an engine", parse=duration, check=_positive)
    health_timeout: float = option(2.0, help="for a health check", parse=duration, check=_positive)
    drain_notice: float = option(
        1.0, help="after SIGTERM, before new requests are refused: /ready says no, answers end their connections", parse=duration
    )
    drain_timeout: float = option(30.0, help="for open requests after that", parse=duration, check=_positive)
    client_timeout: float = option(
        60.0, help="for a request's head, and of silence within its body", parse=duration, check=_positive
    )
    client_stall_timeout: float = option(
        60.0, help="after which a client that takes nothing of its answer is given up", parse=duration, check=_positive
    )
    max_connections: int = option(8192, help="open connections of clients; 0: no limit", check=_not_negative)
    max_bodies: int = option(
        1 << 30, help="bytes of the bodies of all open requests together; 0: no limit", parse=size, check=_not_negative
    )
    max_body: int = option(64 << 20, help="bytes of a request's body", parse=size, check=_positive)
    max_header: int = option(32 << 10, help="bytes of a request's head", parse=size, check=_positive)
    api_keys_file: str = option("", help="file with one client's key per line, name:key; none: every client may come in")
    max_requests_per_key: int = option(0, help="open requests of one API key; 0: no limit", check=_not_negative, reload=True)
    tls_cert: str = option("", help="PEM file with the certificate chain to show clients")
    tls_key: str = option("", help="PEM file with its key")
    engine_api_key: str = option(
        "",
        help="bearer token for health checks, and with api_keys_file for requests; else these carry their client's",
        secret=True,
        check=_printable,
    )
    allow_upstream: tuple[str, ...] = option(
        (), help="host:port that may be connected to; repeatable; none: those of the engines", check=_upstreams
    )
    metaserver: str = option("", help="request endpoint of a metaserver, to choose decode engines by", check=_endpoint)
    metaserver_events: str = option("", help="its event endpoint", check=_endpoint)
    engine_node: tuple[str, ...] = option(
        (), help="URL=NODE: the node of a decode engine; repeatable; default: by host", check=_placed
    )
    locate_wait: float = option(
        0.005, help="for the metaserver, before a decode engine is chosen; 0: by load only", parse=duration, check=_not_negative
    )
    control: str = option("", help="endpoint for operators, to add and remove engines; empty: none", check=_endpoint)
    curve_key_file: str = option("", help="this process's secret key (`pegaflow keys gen`), for metaserver, tiers and control")
    curve_allowed: str = option("", help="keys that may come to control: a file of lines KEY ROLE [NODE], or a folder of *.pub")
    allow_plaintext_network: bool = option(False, help="have control on a network without keys, for anybody to command")
    health_host: str = option("127.0.0.1", help="address of /health, /ready, /metrics, /version without key and TLS")
    health_port: int = option(0, help="port of the same; 0: off", check=_port)
    node: str = option("", help="this node's name in log lines")
    log_level: str = option("info", help="|".join(LEVELS), check=_level, reload=True)

    def __post_init__(self) -> None:
        if self.engine and (self.prefill or self.decode):
            other = "prefill" if self.prefill else "decode"
            raise ValueError(
                f"engine is {_list(self.engine)} and {other} {_list(getattr(self, other))}: a mixed engine has no part in a split"
                " request, give either engine, or prefill and decode"
            )
        if bool(self.prefill) != bool(self.decode):
            raise ValueError(f"prefill is {_list(self.prefill)} and decode {_list(self.decode)}: they are needed together")
        if not self.engine and not self.prefill:
            raise ValueError("no engines: give --engine, or --prefill and --decode")
        if self.pd_first_token and not self.prefill:
            raise ValueError(f"pd_first_token is true and engine {_list(self.engine)}: it needs prefill and decode engines")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError(f"tls_cert is {self.tls_cert!r} and tls_key {self.tls_key!r}: they are needed together")
        if self.max_bodies and self.max_body > self.max_bodies:
            raise ValueError(f"max_body is {self.max_body} and max_bodies {self.max_bodies}: such a body would never have room")
        self._check_metaserver()
        listens = {"port": f"tcp://{self.host}:{self.port or '*'}", "control": self.control}
        apart(listens, health_host=self.health_host, health_port=self.health_port)
        self.allowed()
        # Read here, so that a wrong file is a config error, also for --check-config.
        ring = self.keyring()
        if self.control:
            check_bind(self.control, ring, self.allow_plaintext_network)
        for endpoint in filter(None, (self.metaserver, self.metaserver_events)):
            check_connects(ring, endpoint)
        self.guard()
        self.certificate()

    def _check_metaserver(self) -> None:
        if bool(self.metaserver) != bool(self.metaserver_events):
            raise ValueError(
                f"metaserver is {self.metaserver!r} and metaserver_events {self.metaserver_events!r}: they are needed together"
            )

    def allowed(self) -> Allowed:
        """Raises ValueError."""
        listed = [HostPort.parse(text) for text in self.allow_upstream]
        return Allowed.of((*self.prefill, *self.decode, *self.engine), listed)

    def guard(self) -> Guard:
        """Reads the file of keys. Raises BadKeys."""
        return Guard(Path(self.api_keys_file) if self.api_keys_file else None, self.max_requests_per_key)

    def keyring(self) -> Keyring | None:
        """Reads the files. Raises `LocalError`."""
        return keyring(BusRole.ROUTER, self.curve_key_file, self.curve_allowed)

    def certificate(self) -> Certificate | None:
        """Reads the files. Raises BadCertificate."""
        return Certificate(Path(self.tls_cert), Path(self.tls_key)) if self.tls_cert else None

    def flow_settings(self) -> FlowSettings:
        split = Mode.FIRST_TOKEN if self.pd_first_token else Mode.PREFILL_DECODE
        return FlowSettings(
            mode=Mode.MIXED if self.engine else split,
            decode_api=self.pd_decode_api,
            unsplicable=self.pd_unsplicable,
            model_length=self.pd_max_model_len,
            retries=self.pd_flow_retries,
            resume=self.pd_resume,
            own_key=bool(self.api_keys_file),
        )

    def placed(self) -> dict[str, str]:
        """Engine's base URL → node, as told."""
        return {_url(url): node for url, _, node in (text.rpartition("=") for text in self.engine_node)}

    def listed(self) -> dict[Role, tuple[str, ...]]:
        """Base URLs of the roles that this router has."""
        if self.engine:
            return {Role.ENGINE: self.engine}
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode}

    def engines(self) -> Engines:
        breaker = BreakerSettings(self.breaker_failures, self.breaker_pause)
        return Engines(self.listed(), policy=self.policy, breaker=breaker)

    def timeouts(self) -> Timeouts:
        return Timeouts(
            connect=self.connect_timeout,
            prefill=self.prefill_timeout,
            answer=self.answer_timeout,
            first_byte=self.first_byte_timeout,
            idle=self.idle_timeout,
        )
