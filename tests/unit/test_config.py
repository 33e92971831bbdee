"""Configuration layers: which one wins, and what an operator is told when one is wrong."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path

import pytest
from pegaflow.common.config import EX_CONFIG, ConfigError, Loaded, load, option, render, resolve
from pegaflow.common.quantity import duration, size
from pegaflow.common.version import package_version


class Mode(StrEnum):
    READ = "read"
    WRITE = "write"


def port_range(value: int) -> str | None:
    return None if 0 <= value < 65536 else f"{value} is not a port"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    port: int = option(8000, help="where to listen", check=port_range)
    pool_size: int = option(4 << 30, help="bytes of the pool", parse=size)
    wait: float = option(0.05, help="seconds to wait", parse=duration)
    ratio: float = option(0.5, help="a share of 100 %")
    peers: tuple[str, ...] = option((), help="others")
    path: Path | None = option(None, help="a file")
    strict: bool = option(False, help="be strict")
    mode: Mode = option(Mode.READ, help="what to do")
    token: str = option("", help="shared secret", secret=True)

    def __post_init__(self) -> None:
        if self.wait > 10:
            raise ValueError("wait must not exceed 10 s")


def read(*argv: str, environ: dict[str, str] | None = None) -> Loaded[Sample]:
    return resolve(Sample, section="tier", argv=argv, environ=environ)


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "pegaflow.toml"
    file.write_text(text)
    return str(file)


def test_defaults_are_named_as_the_source() -> None:
    loaded = read()
    assert loaded.value == Sample()
    assert set(loaded.sources.values()) == {"default"}


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    file = write(tmp_path, '[tier]\nport = 1\npool_size = "1MiB"\nratio = 1\n')
    environ = {"PEGAFLOW_TIER_PORT": "2", "PEGAFLOW_TIER_POOL_SIZE": "2MiB", "PATH": "/bin"}
    loaded = read("--config", file, "--port", "3", environ=environ)
    assert (loaded.value.port, loaded.value.pool_size, loaded.value.ratio) == (3, 2 << 20, 1.0)
    assert loaded.sources["port"] == "command line"
    assert loaded.sources["pool_size"] == "environment PEGAFLOW_TIER_POOL_SIZE"
    assert loaded.sources["ratio"] == f"file {file}"
    assert loaded.sources["wait"] == "default"


def test_the_file_may_come_from_the_environment(tmp_path: Path) -> None:
    assert read(environ={"PEGAFLOW_CONFIG": write(tmp_path, "[tier]\nport = 7\n")}).value.port == 7


def test_lists_replace_and_are_repeated_or_comma_separated(tmp_path: Path) -> None:
    file = write(tmp_path, '[tier]\npeers = ["a", "b"]\n')
    assert read("--config", file).value.peers == ("a", "b")
    assert read("--config", file, environ={"PEGAFLOW_TIER_PEERS": "c,d"}).value.peers == ("c", "d")
    assert read("--config", file, "--peers", "e", "--peers", "f,g").value.peers == ("e", "f,g")


def test_an_empty_text_unsets_an_optional_field(tmp_path: Path) -> None:
    file = write(tmp_path, '[tier]\npath = "/x"\n')
    assert read("--config", file).value.path == Path("/x")
    assert read("--config", file, "--path", "").value.path is None


@pytest.mark.parametrize(("argv", "expected"), [(["--strict"], True), (["--no-strict"], False), ([], True)])
def test_flags_of_bools_have_a_negation(argv: list[str], expected: bool) -> None:
    assert read(*argv, environ={"PEGAFLOW_TIER_STRICT": "yes"}).value.strict is expected


def test_only_the_own_table_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, "[router]\nanything = 1\n[tier]\nport = 5\n")
    assert read("--config", file).value.port == 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tier]\nprot = 1\n", "unknown key 'prot' in [tier]; did you mean port?"),
        ("[teir]\nport = 1\n", "unknown table [teir]; did you mean tier?"),
        ("tier = 3\n", "tier must be a table"),
        ("[tier]\nport = true\n", "port: needs a whole number, got true"),
        ('[tier]\nport = "x"\n', "port: needs a whole number, got 'x'"),
        ("[tier]\nport = 1.5\n", "port: needs a whole number, got 1.5"),
        ("[tier]\nport = 70000\n", "port: 70000 is not a port"),
        ("[tier]\npath = 3\n", "path: needs a path, got 3"),
        ("[tier]\nstrict = 2\n", "strict: needs true or false, got 2"),
        ('[tier]\nmode = "append"\n', "mode: 'append' is not one of read, write"),
        ('[tier]\npeers = "a"\n', "peers: needs a list"),
        ('[tier]\nwait = "1 day"\n', "wait: '1 day' is not a number with one of the units"),
        ('[tier]\nwait = "11s"\n', "wait must not exceed 10 s"),
        ("[tier\n", "pegaflow.toml: "),
    ],
)
def test_errors_in_the_file_say_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("--config", write(tmp_path, text))
    assert told in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read("--config", str(tmp_path / "none.toml"))


def test_an_unknown_variable_of_this_service_is_an_error_and_others_are_not() -> None:
    read(environ={"PEGAFLOW_ROUTER_PROT": "1", "PEGAFLOW_FAULT": "x:kill"})
    with pytest.raises(ConfigError, match="did you mean PEGAFLOW_TIER_PORT"):
        read(environ={"PEGAFLOW_TIER_PROT": "1"})


@pytest.mark.parametrize("argv", [["--prot", "1"], ["--por", "1"], ["--port"], ["extra"]])
def test_bad_flags_are_config_errors(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="command line"):
        read(*argv)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        load(Sample, section="tier", prog="pegaflow-tier", description="", argv=argv, environ={})
    shown = capsys.readouterr()
    return caught.value.code, shown.out, shown.err


def test_load_exits_78_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--port", "x")
    assert (code, out) == (EX_CONFIG, "")
    assert err == "pegaflow-tier: bad_config: command line: port: needs a whole number, got 'x'\n"


def test_check_config_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--check-config") == (0, "pegaflow-tier: config ok\n", "")
    assert run(capsys, "--version") == (0, f"pegaflow-tier {package_version()}\n", "")
    assert run(capsys, "--check-config", "--port", "-1")[0] == EX_CONFIG


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "a share of 100 % (default: 0.5)" in out
    assert "--no-strict" in out


def test_print_config_is_read_back_as_the_same_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--print-config", "--peers", 'quote " and \x7f', "--strict", "--wait", "2ms")
    assert code == 0
    assert "strict = true  # command line" in out
    assert "# path is not set  # default" in out
    again = read("--config", write(tmp_path, out)).value
    assert again == Sample(peers=('quote " and \x7f',), strict=True, wait=0.002)


def test_secrets_are_not_printed() -> None:
    text = render(read("--token", "hunter2"), "tier")
    assert "hunter2" not in text
    assert "# token is set  # command line" in text


def test_a_field_without_option_is_a_programming_error() -> None:
    @dataclasses.dataclass(frozen=True)
    class Bare:
        port: int = 1

    with pytest.raises(TypeError, match="port was not made with option"):
        resolve(Bare, section="tier")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4GiB", 4 << 30), ("1.5 KiB", 1536), ("7", 7), ("2MB", 2_000_000), (str(2**60 + 1), 2**60 + 1)],
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(("text", "value"), [("500ms", 0.5), ("2s", 2.0), ("3", 3.0), (".5", 0.5), ("2m", 120.0), ("50us", 5e-5)])
def test_durations(text: str, value: float) -> None:
    assert duration(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1gib", "1 2", "0.5B", "1e3"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        size(text)
