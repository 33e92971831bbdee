"""Options of the watch."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pegaflow.common.config import duration, option
from pegaflow.common.logs import LEVELS
from pegaflow.services.watch.state import Rules


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _programs(values: tuple[str, ...]) -> str | None:
    names = []
    for value in values:
        name, equals, url = value.partition("=")
        if not name or not equals or not _is_http(url):
            return f"{value!r}: expected PROGRAM=http://HOST:PORT/health"
        names.append(name)
    return None if len(names) == len(set(names)) else "a program is named twice"


def _count(value: int) -> str | None:
    return None if value > 0 else "must be above 0"


def _time(value: float) -> str | None:
    return None if value > 0 else "must be above 0"


def _port(value: int) -> str | None:
    return None if 0 <= value < 65536 else "a port is 0 (off) to 65535"


def _level(value: str) -> str | None:
    return None if value in LEVELS else f"one of {', '.join(LEVELS)}"


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """Programs are called as in supervisord's configuration, without their group."""

    program: tuple[str, ...] = option((), help="PROGRAM=URL of its /health; repeat it", check=_programs)
    failures: int = option(3, help="so many failures ...", check=_count)
    within: float = option(60.0, help="... within this time, and no answer between them, are a reason to restart", parse=duration)
    grace: float = option(600.0, help="for a start: until /health was answered once", parse=duration, check=_time)
    pause: float = option(60.0, help="after a restart, before the next of the same program; doubled each time", parse=duration)
    pause_max: float = option(900.0, help="but not beyond this; alive for so long, a program begins anew", parse=duration)
    timeout: float = option(2.0, help="for an answer", parse=duration, check=_time)
    health_host: str = option("127.0.0.1", help="address of /health, /ready, /metrics, /version")
    health_port: int = option(0, help="port of the same; 0: off", check=_port)
    node: str = option("", help="its name in logs")
    log_level: str = option("info", help="debug, info, warning or error", check=_level)

    def __post_init__(self) -> None:
        if not self.programs:
            raise ValueError("there is no program to watch: name one as --program NAME=URL")
        if self.pause > self.pause_max:
            raise ValueError(f"pause {self.pause:g} is above pause_max {self.pause_max:g}")

    @property
    def programs(self) -> dict[str, str]:
        """URL of `/health` by program."""
        return {name: url for name, _, url in (value.partition("=") for value in self.program)}

    @property
    def rules(self) -> Rules:
        return Rules(self.failures, self.within, self.grace, self.pause, self.pause_max)
