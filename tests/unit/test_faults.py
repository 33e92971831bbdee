"""Fault points: what may be written into the variable, and what happens at a point."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pegaflow.common import faults
from pegaflow.common.config import ConfigError, load
from pegaflow.common.fault_points import BY_NAME, Point
from pegaflow.common.faults import Action, Fault, FaultRaised
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.metaserver.config import MetaserverConfig

ROOT = Path(__file__).parents[2]
GRANT = Point.TIER_GRANT_AFTER_TABLE


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm({})


def arm(text: str, seen: Path | None = None) -> None:
    faults.arm({faults.VARIABLE: text, faults.SEEN_VARIABLE: str(seen or "")})


def test_the_text() -> None:
    assert faults.parse(f"{GRANT}:kill, {GRANT}@3:stop,\n{GRANT}@*:delay=0.5,*:note") == (
        Fault(f"{GRANT}:kill", str(GRANT), 1, Action.KILL, 0.0),
        Fault(f"{GRANT}@3:stop", str(GRANT), 3, Action.STOP, 0.0),
        Fault(f"{GRANT}@*:delay=0.5", str(GRANT), 0, Action.DELAY, 0.5),
        Fault("*:note", "*", 0, Action.NOTE, 0.0),
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tier.grant.after_tabel:kill", "the nearest is tier.grant.after_table"),
        (f"{GRANT}:kil", "the nearest is kill"),
        (f"{GRANT}", "POINT[@VISIT]:ACTION"),
        (f"{GRANT}@0:kill", "a visit is a number from 1"),
        (f"{GRANT}@x:kill", "a visit is a number from 1"),
        (f"{GRANT}@*:kill", "kill happens once"),
        (f"{GRANT}:delay", "takes seconds"),
        (f"{GRANT}:delay=soon", "'soon' is no number of seconds"),
        (f"{GRANT}:delay=nan", "'nan' is no number of seconds"),
        (f"{GRANT}:kill=9", "takes seconds"),
        (f"{GRANT}:note", "note goes with *"),
        ("*:kill", "note goes with *"),
        ("@/nowhere/at/all", "/nowhere/at/all: No such file"),
    ],
)
def test_a_wrong_text_is_refused_and_says_what_is_nearest(text: str, wanted: str) -> None:
    with pytest.raises(LocalError) as refused:
        arm(text)
    assert refused.value.code == "bad_config"
    assert wanted in refused.value.text


def test_a_service_with_a_wrong_text_exits_with_78(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(
            MetaserverConfig,
            section="metaserver",
            prog="pegaflow-metaserver",
            description="",
            argv=[],
            environ={faults.VARIABLE: "metaserver.hello.before:kill"},
        )
    assert ended.value.code == 78
    assert "the nearest is metaserver.hello.before_applied" in capsys.readouterr().err
    assert issubclass(ConfigError, Exception)


def test_raise_happens_at_its_visit_and_once_per_marks_file(tmp_path: Path) -> None:
    arm(f"{GRANT}@2:raise", tmp_path / "seen")
    faults.reach(GRANT)
    faults.reach(Point.TIER_GRANT_AFTER_SENT)
    with pytest.raises(FaultRaised):
        faults.reach(GRANT)
    faults.reach(GRANT)
    assert faults.seen(tmp_path / "seen") == {f"{GRANT}@2:raise": os.getpid()}
    arm(f"{GRANT}@2:raise", tmp_path / "seen")  # the next life of the process
    for _ in range(3):
        faults.reach(GRANT)


def test_every_visit(tmp_path: Path) -> None:
    arm(f"{GRANT}@*:raise", tmp_path / "seen")
    for _ in range(3):
        with pytest.raises(FaultRaised):
            faults.reach(GRANT)
    assert len(faults.seen(tmp_path / "seen")) == 1


def test_note_marks_every_point_once(tmp_path: Path) -> None:
    arm("*:note", tmp_path / "seen")
    for point in (GRANT, GRANT, Point.TIER_GRANT_AFTER_SENT):
        faults.reach(point)
    assert list(faults.seen(tmp_path / "seen")) == [f"{GRANT}:note", f"{Point.TIER_GRANT_AFTER_SENT}:note"]


def test_a_file_arms_while_the_process_runs(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    file.write_text("")
    arm(f"@{file}")
    faults.reach(GRANT)
    file.write_text(f"{GRANT}:raise\n")
    with pytest.raises(FaultRaised):
        faults.reach(GRANT)
    file.write_text("nonsense")
    faults.reach(GRANT)  # said in the log; what was armed before has happened
    file.write_text(f"{GRANT}:raise,")
    with pytest.raises(FaultRaised):
        faults.reach(GRANT)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_kill_and_stop(tmp_path: Path, how: str) -> None:
    program = (
        "import os; from pegaflow.common import faults; from pegaflow.common.fault_points import Point;"
        "faults.arm(os.environ); faults.reach(Point.TIER_GRANT_AFTER_TABLE); print('went on')"
    )
    environ = {**os.environ, faults.VARIABLE: f"{GRANT}:{how}", faults.SEEN_VARIABLE: str(tmp_path / "seen")}
    child = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if how == "stop":
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == ((0, b"went on\n") if how == "stop" else (-signal.SIGKILL, b""))
    assert f"fault_reached: {GRANT}:{how}".encode() in err
    assert faults.seen(tmp_path / "seen") == {f"{GRANT}:{how}": child.pid}


def test_nothing_is_wrapped_where_nothing_is_armed() -> None:
    def step(subject: int) -> None:
        reached.append(subject)

    reached: list[int] = []
    assert faults.around(step, lambda _: (GRANT, None)) is step
    arm(f"{GRANT}:raise")
    stepped = faults.around(step, lambda _: (None, GRANT))
    with pytest.raises(FaultRaised):
        stepped(1)
    assert reached == [1]


def test_names_follow_from_members_and_every_point_has_a_site() -> None:
    assert all(point.name == str(point.value).upper().replace(".", "_") and point.story for point in Point)
    assert len(BY_NAME) == len(Point) >= 60
    sites: set[str] = set()
    for folder in ("services", "connector"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Point":
                    sites.add(node.attr)
    assert {point.name for point in Point} - sites == set()
