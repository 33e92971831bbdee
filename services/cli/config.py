"""Where the inspection tool looks if the command line does not say."""

from __future__ import annotations

from dataclasses import dataclass

from pegaflow.common.config import duration, option


def _above_0(value: float) -> str | None:
    return None if value > 0 else "must be above 0"


@dataclass(frozen=True, slots=True)
class CliConfig:
    """Table [cli] of the configuration file, variables PEGAFLOW_CLI_…"""

    metaserver: tuple[str, ...] = option((), help="request endpoints of metaservers (default: tcp://127.0.0.1:7400)")
    tier: tuple[str, ...] = option((), help="request endpoints of tiers to look at besides those a metaserver knows")
    router: tuple[str, ...] = option((), help="control endpoints of routers, for the commands that look at routers too")
    curve_key_file: str = option("", help="an operator's secret key; endpoints then end in #KEY, their server's public key")
    timeout: float = option(2.0, help="how long a look at all of them may take", parse=duration, check=_above_0)


DEFAULT_METASERVER = "tcp://127.0.0.1:7400"
