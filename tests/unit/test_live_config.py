"""SIGHUP: what changes, what waits for a restart, and what is refused as a whole."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keys import Keys
from pegaflow.common import live_config, logs
from pegaflow.common.bus.roles import Role
from pegaflow.common.config import option, resolve
from pegaflow.common.live_config import LiveConfig
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.reload import reloading
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    low: int = option(1, help="", reload=True)
    high: int = option(5, help="", reload=True)
    size: int = option(10, help="")
    token: str = option("", help="", secret=True)
    log_level: str = option("info", help="", reload=True)

    def __post_init__(self) -> None:
        if not self.low <= self.high <= self.size:
            raise ValueError(f"low {self.low}, high {self.high}, size {self.size} must rise")


class Case:
    """A live configuration over a file, and what was logged and applied."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
        self.file = tmp_path / "c.toml"
        self.write("")
        self.applied: list[tuple[Sample, frozenset[str]]] = []
        self.logged: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(live_config, "log", self)
        argv = ("--config", str(self.file))
        self.live: LiveConfig[Sample] = LiveConfig(
            resolve(Sample, section="tier", argv=argv, environ=environ),
            lambda: resolve(Sample, section="tier", argv=argv, environ=environ),
        )
        self.live.apply = lambda value, changed: self.applied.append((value, changed))

    def write(self, text: str) -> None:
        self.file.write_text(f"[tier]\n{text}\n")

    def info(self, event: str, **fields: Any) -> None:
        self.logged.append((event, fields))

    warning = error = info


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def test_what_can_change_changes_at_once(case: Case) -> None:
    case.write("low = 2\nhigh = 7")
    assert case.live.reload()
    assert (case.live.value.low, case.live.value.high) == (2, 7)
    assert case.applied == [(case.live.value, frozenset({"low", "high"}))]
    assert case.logged == [("reloaded", {"what": "config", "changed": ["high", "low"]})]
    assert case.live.sources["low"] == f"file {case.file}"


def test_what_cannot_change_is_said_and_stays(case: Case) -> None:
    case.write('low = 2\nsize = 20\ntoken = "hush"')
    assert case.live.reload()
    assert (case.live.value.low, case.live.value.size, case.live.value.token) == (2, 10, "")
    assert case.logged[:2] == [
        ("needs_restart", {"option": "size", "in_use": 10, "wanted": 20}),
        ("needs_restart", {"option": "token", "in_use": "(not set)", "wanted": "(set)"}),
    ]
    assert case.live.sources["size"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("low = 2\nhihg = 3", "did you mean high"),
        ("low = 2\nhigh = 1", "low 2, high 1, size 10"),
        ("low = 2\nhigh = 15\nsize = 20", "low 2, high 15, size 10"),  # fits the size of the next start, not this one
        ("low = [", "Invalid value"),
    ],
)
def test_a_file_that_is_wrong_anywhere_changes_nothing(case: Case, text: str, said: str) -> None:
    case.write(text)
    assert not case.live.reload()
    assert case.live.value == Sample() and case.applied == []
    ((event, fields),) = case.logged
    assert (event, fields["code"]) == ("reload_failed", "bad_config") and said in fields["text"]
    case.write("low = 3")
    assert case.live.reload() and case.live.value.low == 3


@pytest.mark.parametrize("error", [ValueError("not now"), LocalError("bad_config", "not now")])
def test_what_the_service_refuses_changes_nothing(case: Case, error: Exception) -> None:
    def refuse(value: Sample, changed: frozenset[str]) -> None:
        raise error

    case.live.apply = refuse
    case.write("low = 2")
    assert not case.live.reload()
    assert case.live.value == Sample() and case.live.sources["low"] == "default"
    ((event, fields),) = case.logged
    assert event == "reload_failed" and fields["text"].endswith("not now")


def test_the_log_level_follows_and_a_reload_without_a_change_leaves_the_operators_alone(case: Case) -> None:
    case.write('log_level = "debug"')
    assert case.live.reload()
    assert logging.getLogger().level == logging.DEBUG
    logs.set_level("error")  # by the control socket
    assert case.live.reload()
    assert logging.getLogger().level == logging.ERROR


def test_what_people_see(case: Case) -> None:
    assert case.live.view()[2:4] == [
        {"name": "size", "value": 10, "source": "default", "reloadable": False},
        {"name": "token", "value": "(not set)", "source": "default", "reloadable": False},
    ]


@pytest.mark.parametrize(
    ("section", "config"), [("tier", TierConfig), ("metaserver", MetaserverConfig), ("router", RouterConfig)]
)
def test_every_service_changes_its_log_level(section: str, config: type[Any]) -> None:
    argv = ["--engine", "http://e:1"] if section == "router" else []
    options = {one["name"]: one for one in LiveConfig.of(resolve(config, section=section, argv=argv), section, argv).view()}
    assert options["log_level"]["reloadable"]
    assert not options["health_port"]["reloadable"]


def test_a_key_that_is_struck_off_goes_though_the_configuration_is_wrong(case: Case, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.file(Role.ENGINE)
    ring = keys.server(Role.TIER)
    listed = len(ring.listed)
    case.write("high = nonsense")
    keys.allowed.write_text("".join(keys.allowed.read_text().splitlines(keepends=True)[1:]))
    reloading(case.live, ring)()
    assert case.logged[0][0] == "reload_failed" and len(ring.listed) == listed - 1
