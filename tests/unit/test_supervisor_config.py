"""configs/supervisor/ agrees with the plan that fills it in, and with the services that it starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
from pegaflow.common.config import resolve
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig

from deployment.plan import Plan
from deployment.ports import from_base
from deployment.supervision import SERVICES

FOLDER = Path(__file__).parents[2] / "configs" / "supervisor"
PLAN = Plan(run=Path("/run"), runtime=Path("/tmp/r"), pool=Path("/dev/shm/p"), ports=from_base(18100))
ALL = [*SERVICES, "reference"]


def program(name: str) -> dict[str, str]:
    parser = RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read(FOLDER / "services" / f"{name}.ini")
    return dict(parser[f"program:{name}"])


def command(name: str) -> list[str]:
    """As supervisord expands and splits it, without the program itself."""
    values = {f"ENV_{key}": value for key, value in PLAN.environment().items()}
    return shlex.split(program(name)["command"] % values)[1:]


def test_every_variable_is_given() -> None:
    asked = {name for path in FOLDER.rglob("*.*") for name in re.findall(r"%\(ENV_(\w+)\)s", path.read_text())}
    given = {name for name in PLAN.environment() if name.startswith("DEPLOY_")}
    assert asked == given


def test_no_more_files_are_asked_for_than_the_machine_allows() -> None:
    """supervisord does not start below its minfds."""
    program = "from test_supervisor_config import PLAN; print(PLAN.environment()['DEPLOY_FILES'])"
    limited = ["sh", "-c", 'ulimit -n 3000 && exec "$0" -c "$1"', sys.executable, program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(limited, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.strip() == "3000"


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_config_is_not_tried_for_ever(name: str) -> None:
    options = program(name)
    assert options["autorestart"] == "unexpected" and options["exitcodes"].split(",")[-1] == "78"


def test_services_accept_their_command_lines() -> None:
    tier = resolve(TierConfig, section="tier", argv=command("tier-b")[2:]).value
    router = resolve(RouterConfig, section="router", argv=command("router")[2:]).value
    metaserver = resolve(MetaserverConfig, section="metaserver", argv=command("metaserver")[2:]).value
    assert tier.metaserver == (metaserver.requests,)
    assert (router.metaserver, router.metaserver_events) == (metaserver.requests, metaserver.events)
    assert (tier.node, tier.requests) == ("b", f"tcp://127.0.0.1:{PLAN.ports.tier_b_requests}")
    assert (router.pd_first_token, router.port) == (True, PLAN.ports.router)
    assert router.prefill == (f"http://127.0.0.1:{PLAN.ports.p}",)


def test_supervisord_waits_longer_than_a_drain() -> None:
    assert int(program("tier-a")["stopwaitsecs"]) > TierConfig().drain_timeout
    router = resolve(RouterConfig, section="router", argv=["--engine", "http://a:1"]).value
    assert int(program("router")["stopwaitsecs"]) > router.drain_timeout


@pytest.mark.parametrize(("name", "tail"), [("vllm-p", "pegaflow.pd_tail_save"), ("vllm-d", "pegaflow.pd_tail_load")])
def test_engines_meet_the_tier_of_their_node(name: str, tail: str) -> None:
    words = command(name)
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    runtime = transfer["kv_connector_extra_config"]["pegaflow.runtime_dir"]
    tier = {"vllm-p": "tier-a", "vllm-d": "tier-b"}[name]
    assert transfer["kv_connector_extra_config"][tail] is True
    assert runtime == command(tier)[command(tier).index("--runtime-dir") + 1]


def test_the_reference_is_the_same_engine_without_connector() -> None:
    def flags(name: str) -> list[str]:
        words = command(name)
        for flag in ("--port", "--kv-transfer-config"):
            if flag in words:
                del words[words.index(flag) : words.index(flag) + 2]
        return words

    assert flags("reference") == flags("vllm-p") == flags("vllm-d")
    assert program("reference")["environment"] == program("vllm-p")["environment"]
