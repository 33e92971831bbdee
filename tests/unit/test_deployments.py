"""configs/supervisor/, configs/systemd/ and configs/compose.yaml start the same processes in the same way."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pegaflow.common.config import resolve
from pegaflow.common.lifecycle import EX_OK
from pegaflow.common.loop_watch import STUCK_S
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.server import EXPIRY_SECONDS
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.service import BYE_S, LEAVE_S
from pegaflow.services.watch.config import WatchConfig

CONFIGS = Path(__file__).parents[2] / "configs"
UNITS = {
    "metaserver": "pegaflow-metaserver.service",
    "router": "pegaflow-router.service",
    "tier-a": "pegaflow-tier@.service",
    "vllm-p": "pegaflow-vllm-p.service",
    "vllm-d": "pegaflow-vllm-d.service",
}
PROGRAMS = [*UNITS, "tier-b"]
EX_CONFIG = 78


class Started(NamedTuple):
    """One process as one of the three starts it. Variables are written {NAME}, a node's name {NODE}."""

    command: list[str]
    environment: dict[str, str]
    stop_s: int


def words(command: str) -> list[str]:
    """The program without its folder, and its flags, in order."""
    variable = r"%\(ENV_DEPLOY_(\w+)\)s|\$\{DEPLOY_(\w+)\}|\$DEPLOY_(\w+)"
    text = re.sub(variable, lambda match: f"{{{next(filter(None, match.groups()))}}}", command)
    return [" ".join(word.split()).replace("{ ", "{") for word in shlex.split(text)]


def of_node(started: Started, node: str) -> Started:
    """A tier's command with its node's name and ports taken out."""

    def general(word: str) -> str:
        return re.sub(rf"/({node}|%i)$", "/{NODE}", word).replace(f"TIER_{node.upper()}_", "TIER_")

    command = [general(word) for word in started.command]
    at = command.index("--node") + 1
    assert command[at] in (node, "%i")
    command[at] = "{NODE}"
    return started._replace(command=command)


def supervisor(name: str) -> dict[str, str]:
    parser = RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read(CONFIGS / "supervisor" / "services" / f"{name}.ini")
    return dict(parser[parser.sections()[0]])


def by_supervisor(name: str) -> Started:
    options = supervisor(name)
    command = words(options["command"])
    pairs = [pair.partition("=")[::2] for pair in options.get("environment", "").split(",") if pair]
    environment = {key: words(value)[0] for key, value in pairs}
    return Started([Path(command[0]).name, *command[1:]], environment, int(options["stopwaitsecs"]))


def unit(name: str) -> dict[str, list[str]]:
    text = (CONFIGS / "systemd" / UNITS[name]).read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def by_systemd(name: str) -> Started:
    options = unit(name)
    command = words(options["ExecStart"][0])
    pairs = list(options.get("Environment", []))
    if command[0] == "/usr/bin/env":
        pairs.append(command[1])
        del command[:2]
    environment = dict(pair.split("=", 1) for pair in pairs)
    return Started([Path(command[0]).name, *command[1:]], environment, int(options["TimeoutStopSec"][0]))


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CONFIGS / "compose.yaml").read_text())["services"]
    return document


def by_compose(name: str) -> Started:
    service = compose()[name]
    environment = {key: words(value)[0] for key, value in service.get("environment", {}).items()}
    return Started(words(service["command"]), environment, int(service["stop_grace_period"].removesuffix("s")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_compose_starts_what_supervisord_starts(name: str) -> None:
    assert by_compose(name) == by_supervisor(name)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_starts_what_supervisord_starts(name: str) -> None:
    if name == "tier-a":
        assert of_node(by_systemd(name), "a") == of_node(by_supervisor(name), "a") == of_node(by_supervisor("tier-b"), "b")
    else:
        assert by_systemd(name) == by_supervisor(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_everybody_starts_again_what_died_and_nobody_what_is_configured_wrongly(name: str) -> None:
    """vLLM ends with 0 also where its engine core has died, out of memory or so; our services only where they were told to."""
    options, service, engine = supervisor(name), compose()[name], name.startswith("vllm")
    expected = f"{EX_CONFIG}" if engine else f"{EX_OK},{EX_CONFIG}"
    assert (options["autorestart"], options["exitcodes"]) == ("unexpected", expected)
    assert service["restart"] == ("unless-stopped" if engine else "on-failure")
    assert service["depends_on"] == {"config": {"condition": "service_completed_successfully"}}
    if name in UNITS:
        restart = "always" if engine else "on-failure"
        assert (unit(name)["Restart"], unit(name)["RestartPreventExitStatus"]) == ([restart], [str(EX_CONFIG)])
        assert float(unit(name).get("WatchdogSec", ["inf"])[0]) > STUCK_S


def test_compose_checks_every_services_configuration_before_it_starts_one() -> None:
    config = compose()["config"]
    shell = words(config["command"])[-1]
    for program in ("pegaflow-metaserver", "pegaflow-tier", "pegaflow-router"):
        assert re.search(rf"{program} [^&]*--check-config", shell), program
    assert config["restart"] == "no" and config["depends_on"] == {}


def test_stop_times_are_above_what_services_take_to_drain() -> None:
    assert by_supervisor("tier-a").stop_s > TierConfig().drain_timeout + BYE_S + LEAVE_S
    router = resolve(RouterConfig, section="router", argv=["--engine", "http://a:1"]).value
    assert by_supervisor("router").stop_s > router.drain_notice + router.drain_timeout + EXPIRY_SECONDS + 1


def test_the_watch_and_composes_health_checks_look_at_the_same_places() -> None:
    flags = words(supervisor("watch")["command"])
    watched = dict(flags[i + 1].split("=") for i, word in enumerate(flags) if word == "--program")
    checks = {name: service["healthcheck"] for name, service in compose().items() if name != "config"}
    asked = {name: words(" ".join(check["test"])) for name, check in checks.items()}
    assert {name: test[-1] for name, test in asked.items()} == watched
    assert set(watched) == set(PROGRAMS)
    assert all(test[:-1] == ["CMD", "pegaflow-watch", "--probe"] for test in asked.values())
    rules = WatchConfig(program=("a=http://a/",))
    assert all(check["retries"] == rules.failures for check in checks.values())
    assert all(check["start_period"] == f"{rules.grace:g}s" for check in checks.values())


def test_groups_are_nodes() -> None:
    parser = RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read(CONFIGS / "supervisor" / "supervisord.conf")
    groups = {section: parser[section]["programs"] for section in parser.sections() if section.startswith("group:")}
    assert groups == {"group:node-a": "tier-a,vllm-p", "group:node-b": "tier-b,vllm-d"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    paths = []
    for path in sorted((CONFIGS / "systemd").glob("*.service")):
        text = path.read_text().replace("/opt/pegaflow/bin/", f"{tmp_path}/")
        for program in re.findall(rf"{tmp_path}/([\w-]+)", text):
            (tmp_path / program).touch(0o755)
        paths.append(tmp_path / path.name)
        paths[-1].write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert (checked.returncode, [line for line in checked.stderr.splitlines() if "pegaflow" in line]) == (0, [])
