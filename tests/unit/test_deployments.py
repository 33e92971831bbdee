"""configs/supervisor/, configs/systemd/ and configs/compose.yaml start the same processes in the same way.

The first and the last are one machine, with flags. A unit is a node of its own, and leaves to the file what they say with flags.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pegaflow.common.config import resolve
from pegaflow.common.lifecycle import EX_OK, EX_TEMPFAIL
from pegaflow.common.loop_watch import STUCK_S
from pegaflow.services.cli.doctor.surroundings import MIN_FILES
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.server import EXPIRY_SECONDS
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.service import BYE_S, LEAVE_S
from pegaflow.services.watch.config import WatchConfig

from deployment.supervision import wait_for

CONFIGS = Path(__file__).parents[2] / "configs"
UNITS = {
    "metaserver": "pegaflow-metaserver.service",
    "router": "pegaflow-router.service",
    "tier-a": "pegaflow-tier@.service",
    "vllm-p": "pegaflow-vllm-p@.service",
    "vllm-d": "pegaflow-vllm-d@.service",
}
PROGRAMS = [*UNITS, "tier-b"]
SERVICES = [name for name in PROGRAMS if not name.startswith("vllm")]
NODES = {"tier-a": "a", "vllm-p": "a", "tier-b": "b", "vllm-d": "b"}
FLAGS_OF_UNITS = ("--config", "--node", "--runtime-dir")
"""What a unit says to a service; the file says the rest, and a flag would beat it."""
EX_CONFIG = 78


def variables(text: str) -> dict[str, str]:
    """Of an environment file, as a shell, compose and systemd read it alike: NAME=VALUE, in quotes where it has blanks."""
    pairs = [line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: (shlex.split(value) or [""])[0] for name, value in pairs}


_EXAMPLE = variables((CONFIGS / "deploy.env.example").read_text())
EXAMPLE = {name.removeprefix("DEPLOY_"): value for name, value in _EXAMPLE.items()}


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


def of_any_node(name: str, started: Started) -> Started:
    """The command with its node's name and runtime directory taken out."""
    node = NODES.get(name, "-")
    runtime = rf"(?:\{{RUNTIME\}}|/run/pegaflow)/(?:{node}|%i)\b"
    command = [re.sub(runtime, "{RUNTIME}/{NODE}", word) for word in started.command]
    if "--node" in command:
        at = command.index("--node") + 1
        assert command[at] in (node, "%i")
        command[at] = "{NODE}"
    return started._replace(command=command)


def supervisor(name: str) -> dict[str, str]:
    parser = RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read(CONFIGS / "supervisor" / "services" / f"{name}.ini")
    return dict(parser[parser.sections()[0]])


def supervisord() -> RawConfigParser:
    parser = RawConfigParser(inline_comment_prefixes=(";", " #"))
    parser.read(CONFIGS / "supervisor" / "supervisord.conf")
    return parser


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
    expected = of_any_node(name, by_supervisor(name))
    if name in SERVICES:
        first, *rest = expected.command
        kept = [word for before, word in pairwise((first, *rest)) if {before, word} & {*FLAGS_OF_UNITS}]
        expected = expected._replace(command=[first, *kept])
    assert of_any_node(name, by_systemd(name)) == expected


def test_both_nodes_are_alike() -> None:
    a, b = (of_any_node(f"tier-{node}", by_supervisor(f"tier-{node}")) for node in "ab")
    assert [word.replace("TIER_A_", "TIER_B_") for word in a.command] == b.command


@pytest.mark.parametrize("name", PROGRAMS)
def test_everybody_starts_again_what_died_and_nobody_what_is_configured_wrongly(name: str) -> None:
    """vLLM ends with 0 also where its engine core has died, out of memory or so; our services only where they were told to."""
    options, service, engine = supervisor(name), compose()[name], name.startswith("vllm")
    expected = f"{EX_CONFIG}" if engine else f"{EX_OK},{EX_CONFIG}"
    assert (options["autorestart"], options["exitcodes"]) == ("unexpected", expected)
    assert service["restart"] == ("unless-stopped" if engine else "on-failure")
    assert service["depends_on"] == {f"check-{one}": {"condition": "service_completed_successfully"} for one in SERVICES}
    if name in UNITS:
        restart = "always" if engine else "on-failure"
        assert (unit(name)["Restart"], unit(name)["RestartPreventExitStatus"]) == ([restart], [str(EX_CONFIG)])
        assert float(unit(name).get("WatchdogSec", ["inf"])[0]) > STUCK_S


@pytest.mark.parametrize("name", UNITS)
def test_starts_that_fail_are_counted_for_engines_only(name: str) -> None:
    """vLLM has no exit code of its own for flags that it cannot use; one of ours that cannot start now can in a moment."""
    options, (interval,) = supervisor(name), unit(name)["StartLimitIntervalSec"]
    if name in SERVICES:
        assert (options["startsecs"], interval) == ("0", "0")
    else:
        taken = int(options["startsecs"]) + int(unit(name)["RestartSec"][0])
        assert 0 < int(unit(name)["StartLimitBurst"][0]) * taken < int(interval)
        assert 0 < int(options["startretries"]) < 10


def test_an_exit_counts_by_its_code_however_soon_it_comes(tmp_path: Path) -> None:
    """With a real supervisord: 75 at once is tried again, 78 at once is not."""
    text = f"[supervisord]\nnodaemon = true\nlogfile = {tmp_path}/log\npidfile = {tmp_path}/pid\nchildlogdir = {tmp_path}\n"
    rules = {key: supervisor("tier-a")[key] for key in ("startsecs", "startretries", "autorestart", "exitcodes")}
    rules["startsecs"] = f"{30 * int(rules['startsecs'])}"  # any time would be too long; a loaded machine takes a second to exit
    for name, code in (("busy", EX_TEMPFAIL), ("wrong", EX_CONFIG)):
        lines = {"command": f"sh -c 'exit {code}'", **rules}
        text += f"[program:{name}]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())
    (tmp_path / "supervisord.conf").write_text(text)

    def log() -> str:
        return path.read_text() if (path := tmp_path / "log").exists() else ""

    command = [f"{Path(sys.executable).parent}/supervisord", "-c", f"{tmp_path}/supervisord.conf"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as child:
        try:
            assert wait_for(lambda: log().count("spawned: 'busy'") > 1 and "exited: wrong" in log(), 20), log()
            assert "exit status 78; expected" in log() and log().count("spawned: 'wrong'") == 1
        finally:
            child.terminate()


def test_limits_are_the_same_everywhere() -> None:
    """A client's connection and that to its engine are two files."""
    (files,) = {str(compose()[name]["ulimits"]["nofile"]) for name in PROGRAMS}
    assert {*(unit(name)["LimitNOFILE"][0] for name in UNITS), EXAMPLE["FILES"]} == {files}
    router = resolve(RouterConfig, section="router", argv=["--engine", "http://a:1"]).value
    assert int(files) > 2 * router.max_connections and int(files) > MIN_FILES
    assert supervisord()["supervisord"]["minfds"] == "%(ENV_DEPLOY_FILES)s"
    assert {compose()[name]["ulimits"]["memlock"] for name in PROGRAMS} == {-1}
    pinned = {name for name in UNITS if unit(name).get("LimitMEMLOCK") == ["infinity"]}
    assert pinned == {"tier-a", "vllm-p", "vllm-d"}


@pytest.mark.parametrize("name", SERVICES)
def test_compose_checks_every_services_configuration_before_it_starts_one(name: str) -> None:
    check = compose()[f"check-{name}"]
    assert check["command"] == compose()[name]["command"]
    assert check["restart"] == "no" and check["depends_on"] == {}


def test_compose_mounts_folders_and_nobody_is_root() -> None:
    """An editor puts another file in a file's place; a mounted one would stay the old one."""
    for name, service in compose().items():
        places = [re.fullmatch(r"\$\{DEPLOY_(\w+)\}:\$\{DEPLOY_\1\}(?::ro)?", text) for text in service["volumes"]]
        assert {place[1] for place in places if place} == {"ETC", "RUNTIME", "POOL", "DISK", "MODEL"}, name
        assert service["user"].startswith("${DEPLOY_USER:?")


def test_stop_times_are_above_what_services_take_to_drain() -> None:
    assert by_supervisor("tier-a").stop_s > TierConfig().drain_timeout + BYE_S + LEAVE_S
    router = resolve(RouterConfig, section="router", argv=["--engine", "http://a:1"]).value
    assert by_supervisor("router").stop_s > router.drain_notice + router.drain_timeout + EXPIRY_SECONDS + 1


def test_the_watch_and_composes_health_checks_look_at_the_same_places() -> None:
    flags = words(supervisor("watch")["command"])
    watched = dict(flags[i + 1].split("=") for i, word in enumerate(flags) if word == "--program")
    checks = {name: service["healthcheck"] for name, service in compose().items() if name in PROGRAMS}
    asked = {name: words(" ".join(check["test"])) for name, check in checks.items()}
    assert {name: test[-1] for name, test in asked.items()} == watched
    assert set(watched) == set(PROGRAMS)
    assert all(test[:-1] == ["CMD", "pegaflow-watch", "--probe"] for test in asked.values())
    rules = WatchConfig(program=("a=http://a/",))
    assert all(check["retries"] == rules.failures for check in checks.values())
    assert all(check["start_period"] == f"{rules.grace:g}s" for check in checks.values())


def test_groups_are_nodes() -> None:
    groups = {section: options["programs"] for section, options in supervisord().items() if section.startswith("group:")}
    assert groups == {"group:node-a": "tier-a,vllm-p", "group:node-b": "tier-b,vllm-d"}


def test_the_example_has_every_variable() -> None:
    texts = [path.read_text() for path in (CONFIGS / "supervisor").rglob("*.*")]
    asked = set(re.findall(r"%\(ENV_DEPLOY_(\w+)\)s", "".join(texts)))
    asked |= set(re.findall(r"\$\{DEPLOY_(\w+?)(?::\?[^}]*)?\}", (CONFIGS / "compose.yaml").read_text()))
    assert asked == set(EXAMPLE)


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
