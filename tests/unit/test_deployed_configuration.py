"""What the three deployments start is a configuration that its service takes, with keys too.

Of docs/deploy.md, what stands there: the file, and the variables of each machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from documents import ROOT, blocks
from keys import Keys
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.config import ConfigError, Loaded, resolve
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig
from test_deployments import EXAMPLE, SERVICES, UNITS, Started, by_compose, by_supervisor, by_systemd, compose, unit, variables

CLASSES: dict[str, type[Any]] = {"metaserver": MetaserverConfig, "tier": TierConfig, "router": RouterConfig}
BLOCKS = blocks("docs/deploy.md", (ROOT / "docs" / "deploy.md").read_text())
FILE = next(block.text for block in BLOCKS if block.label == "toml")
OF_METASERVER, OF_P = (variables(block.text) for block in BLOCKS if block.label == "env")
MACHINES = {"metaserver": OF_METASERVER, "tier-a": OF_P, "router": {}}
BY = {"supervisor": by_supervisor, "compose": by_compose}


class Keyed(NamedTuple):
    """A folder with one key per service, and the metaserver's public one."""

    folder: Path
    public: str

    def options(self, service: str) -> dict[str, str]:
        return {"curve_key_file": f"{self.folder}/{service}.key", "curve_allowed": f"{self.folder}/allowed"}

    def file(self) -> Path:
        tables = [f"[{service}]\n" + "".join(f'{k} = "{v}"\n' for k, v in self.options(service).items()) for service in CLASSES]
        path = self.folder / "pegaflow.toml"
        path.write_text("".join(tables))
        return path

    def values(self, key: str | None = None) -> dict[str, str]:
        """Of the example, with this file, and what stands behind the metaserver's address."""
        return {**EXAMPLE, "CONFIG": str(self.file()), "METASERVER_KEY": f"#{self.public}" if key is None else key}


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    keys = Keys(tmp_path)
    for role in (Role.METASERVER, Role.TIER, Role.ROUTER):
        keys.file(role).rename(tmp_path / f"{role}.key")
    return Keyed(tmp_path, Keyring(Role.METASERVER, tmp_path / "metaserver.key", None).public_hex)


def filled(command: list[str], values: dict[str, str]) -> list[str]:
    return [re.sub(r"\{(\w+)\}", lambda match: values[match[1]], word) for word in command]


def resolved(name: str, started: Started, values: dict[str, str], environ: dict[str, str] | None = None) -> Loaded[Any]:
    section = name.partition("-")[0]
    return resolve(CLASSES[section], section=section, argv=filled(started.command, values)[1:], environ=environ)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", SERVICES)
def test_with_keys_and_without_every_service_of_one_machine_takes_its_flags(name: str, by: str, keyed: Keyed) -> None:
    value = resolved(name, BY[by](name), keyed.values()).value
    assert value.curve_key_file
    if name != "metaserver":
        (metaserver,) = {value.metaserver} if name == "router" else value.metaserver
        assert metaserver.endswith(f"#{keyed.public}")
        with pytest.raises(ConfigError, match="public key"):
            resolved(name, BY[by](name), keyed.values(key=""))
    plain = keyed.folder / "plain.toml"
    plain.touch()
    assert not resolved(name, BY[by](name), {**EXAMPLE, "CONFIG": str(plain)}).value.curve_key_file


@pytest.mark.parametrize(("key", "code"), [(None, 0), ("", 78)])
def test_what_compose_starts_first_finds_a_wrong_configuration(key: str | None, code: int, keyed: Keyed) -> None:
    entrypoint = [word.replace("$$", "$") for word in compose()["check-tier-a"]["entrypoint"]]
    command = [*entrypoint, *filled(by_compose("tier-a").command, keyed.values(key))]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert told.returncode == code, told.stderr


def here(text: str, keyed: Keyed) -> str:
    """What stands in the document, with the keys of this test."""
    return re.sub(r"META\d", keyed.public, text.replace("/etc/pegaflow/keys", str(keyed.folder)))


@pytest.mark.parametrize("name", MACHINES)
def test_units_take_what_deploy_says_and_nothing_beats_it(name: str, keyed: Keyed) -> None:
    path = keyed.folder / "pegaflow.toml"
    path.write_text(here(FILE, keyed))
    environ = {key: here(value, keyed) for key, value in MACHINES[name].items() if key.startswith("PEGAFLOW_")}
    started = by_systemd(name)
    command = [word.replace("%i", "n1") for word in started.command]
    loaded = resolved(name, started._replace(command=command), {"CONFIG": str(path)}, environ)
    assert {option for option, source in loaded.sources.items() if source == "command line"} <= {"node", "runtime_dir"}
    addresses = ("requests", "events") if name != "router" else ()
    assert all(getattr(loaded.value, option).startswith("tcp://10.") for option in addresses)
    assert {loaded.sources[option].partition(" ")[0] for option in addresses} <= {"environment"}
    assert loaded.sources["curve_key_file"] == f"file {path}"


def test_deploy_gives_an_engines_unit_all_that_it_asks_for() -> None:
    asked = set(re.findall(r"\$\{?(DEPLOY_\w+)", unit("vllm-p")["ExecStart"][0]))
    assert asked <= set(OF_P)


def test_units_that_deploy_names_are_there() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text() + (ROOT / "docs" / "operate.md").read_text()
    named = {f"{one}.service" for one in re.findall(r"\b(pegaflow-(?:vllm-[pd]|tier)@)", text)}
    assert named and named <= set(UNITS.values())
