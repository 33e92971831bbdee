"""What cannot be meant is refused at the start, and the text has both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.config import ConfigError, resolve
from pegaflow.services.cli.config import CliConfig
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig

F = "0" * 32
ENGINE = "--engine http://e:1"

TIER = [
    ("--evict-low 0.9 --evict-high 0.8", ["evict_low 0.9", "evict_high 0.8"]),
    (f"--pool-size 4MiB --quota {F}=8MiB", [f"quota of {F} is {8 << 20}", f"pool_size {4 << 20}"]),
    ("--disk-dir /d", ["disk_dir is '/d'", "disk_size 0"]),
    ("--disk-size 1GiB", ["disk_dir is ''", f"disk_size {1 << 30}"]),
    ("--disk-dir /d --disk-size 1GiB", ["disk_dir is '/d'", "evict_high 1"]),
    ("--advertise-host h", ["advertise_host is 'h'", "requests, events and control are empty"]),
    ("--metaserver tcp://127.0.0.1:1 --requests tcp://127.0.0.1:7000", ["requests is 'tcp://127.0.0.1:7000'", "events ''"]),
    ("--metaserver tcp://10.0.0.9:7400", ["metaserver is tcp://10.0.0.9:7400", "requests is empty"]),
    ("--requests tcp://h:1 --events tcp://h:1", ["requests and events are both tcp://h:1"]),
    ("--requests tcp://h:1 --events tcp://*:70 --health-port 70", ["events is tcp://*:70", "health_port 70"]),
]
METASERVER = [
    ("--requests tcp://h:1 --control tcp://h:1", ["requests and control are both tcp://h:1"]),
    ("--events tcp://127.0.0.1:9 --health-port 9", ["events is tcp://127.0.0.1:9", "health_port 9"]),
]
ROUTER = [
    (f"{ENGINE} --prefill http://p:1 --decode http://d:1", ["engine is http://e:1", "prefill http://p:1"]),
    ("--prefill http://p:1", ["prefill is http://p:1", "decode empty"]),
    (f"{ENGINE} --pd-first-token", ["pd_first_token is true", "engine http://e:1"]),
    (f"{ENGINE} --max-body 2GiB", [f"max_body is {2 << 30}", f"max_bodies {1 << 30}"]),
    (f"{ENGINE} --tls-key k", ["tls_cert is ''", "tls_key 'k'"]),
    (f"{ENGINE} --metaserver tcp://h:1", ["metaserver is 'tcp://h:1'", "metaserver_events ''"]),
    (f"{ENGINE} --port 80 --health-port 80", ["port is tcp://127.0.0.1:80", "health_port 80"]),
    (f"{ENGINE} --port 80 --control tcp://127.0.0.1:80", ["port and control are both tcp://127.0.0.1:80"]),
]
CLI = [("--timeout 0", ["timeout", "above 0"])]

CASES = [
    (section, config, argv, said)
    for section, config, cases in (
        ("tier", TierConfig, TIER),
        ("metaserver", MetaserverConfig, METASERVER),
        ("router", RouterConfig, ROUTER),
        ("cli", CliConfig, CLI),
    )
    for argv, said in cases
]


@pytest.mark.parametrize(("section", "config", "argv", "said"), CASES, ids=[f"{case[0]} {case[2]}" for case in CASES])
def test_both_values_are_said(section: str, config: type[Any], argv: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(config, section=section, argv=argv.split())
    assert all(part in str(caught.value) for part in said), str(caught.value)


TOLD = ["--allow-plaintext-network"]


def test_what_is_no_contradiction() -> None:
    resolve(
        TierConfig, section="tier", argv=["--requests", "tcp://*:*", "--events", "tcp://*:*", "--control", "tcp://*:*", *TOLD]
    )
    resolve(TierConfig, section="tier", argv=["--metaserver", "tcp://127.0.0.1:7400"])
    resolve(TierConfig, section="tier", argv=["--requests", "tcp://h:9", "--events", "tcp://h:8", "--health-port", "9", *TOLD])
    resolve(RouterConfig, section="router", argv=f"{ENGINE} --port 0 --health-port 0".split())


@pytest.mark.parametrize(
    ("text", "said"),
    [("[teir]\n", "unknown table [teir]; did you mean tier?"), ("[tier]\nevict_hihg = 1\n", "did you mean evict_high?")],
)
def test_what_was_meant_instead(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="did you mean") as caught:
        resolve(TierConfig, section="tier", argv=["--config", str(file)])
    assert said in str(caught.value)
