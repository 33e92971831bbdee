"""How lists are shown, how commands end, and what is asked before something changes."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.services.cli import __main__ as tool
from pegaflow.services.cli import consent, output, status
from pegaflow.services.cli.column import Column, Tone, text
from pegaflow.services.cli.listing import Listing, Output, Wrong
from pegaflow.services.cli.table import size, table
from pegaflow.services.cli.target import UsageError

COLUMNS = (
    Column("NAME", "name"),
    Column("SIZE", "size_bytes", size, tone=lambda value: Tone.BAD if value > 1024 else Tone.GOOD),
    Column("WHY", "why", wide=True),
    Column("", "raw"),
)
ROWS = [{"name": "a", "size_bytes": 2048, "why": "", "raw": [1]}, {"name": "bb", "size_bytes": 1, "why": "so", "raw": None}]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_shows_what_people_need_and_wide_shows_more() -> None:
    assert Listing(COLUMNS, ROWS).render(Output.TABLE) == "NAME  SIZE\na     2KiB\nbb    1B\n"
    assert Listing(COLUMNS, ROWS).render(Output.WIDE) == "NAME  SIZE  WHY\na     2KiB  -\nbb    1B    so\n"


def test_json_has_raw_values_under_the_columns_names() -> None:
    listing = Listing(COLUMNS, [*ROWS, {"name": "c"}], [Wrong("tier", "a", "tcp://h:1", "deadline", "late")])
    found = json.loads(listing.render(Output.JSON))
    assert found["rows"] == [*ROWS, {"name": "c", "size_bytes": None, "why": None, "raw": None}]
    assert found["wrong"] == [{"service": "tier", "node": "a", "endpoint": "tcp://h:1", "code": "deadline", "text": "late"}]
    assert [json.loads(line) for line in listing.render(Output.JSONL).splitlines()] == found["rows"]
    assert Listing(COLUMNS, []).render(Output.JSONL) == ""


def test_colour_does_not_move_columns() -> None:
    plain, painted = (Listing(COLUMNS, ROWS).render(Output.TABLE, colour) for colour in (False, True))
    assert "\x1b[31m2KiB\x1b[0m" in painted and "\x1b" not in plain
    assert painted.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_nothing_that_others_say_reaches_the_terminal_as_a_command() -> None:
    assert "\x1b" not in table(("A",), [("\x1b[2Jx\n",)])


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), ("", "-"), ([], "-"), (0, "0"), (True, "yes"), (False, "no"), (["a", None], "a, -")]
)
def test_cells(value: Any, shown: str) -> None:
    assert text(value) == shown


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_when_there_is_colour(monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], wanted: bool) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.colourful(Terminal() if terminal else io.StringIO()) is wanted


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    output.add_options(parser)
    consent.add_options(parser)
    return parser.parse_args(argv)


def looks(*listings: Listing) -> Callable[[], Any]:
    """Each look gives the next; then somebody presses Ctrl-C."""
    left = list(listings)

    async def look() -> Listing:
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    return look


def test_data_and_talk_go_apart_and_wrong_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Wrong("tier", "a", "tcp://h:1", "deadline", "late")
    assert output.present(options(), looks(Listing(COLUMNS, ROWS))) == 0
    assert capsys.readouterr().err == ""
    assert output.present(options("-o", "jsonl"), looks(Listing(COLUMNS, ROWS, [wrong], ["two of three"]))) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == "tier a at tcp://h:1: deadline: late\ntwo of three\n"


def test_watching_ends_with_the_code_of_the_last_look(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Wrong("tier", "a", "tcp://h:1", "deadline", "late")
    fine, bad = Listing(COLUMNS, ROWS), Listing(COLUMNS, ROWS, [wrong])
    assert output.present(options("--watch", "100ms"), looks(fine, bad)) == 1
    assert capsys.readouterr().out == fine.render(Output.TABLE) + "\n" + fine.render(Output.TABLE)
    assert output.present(options("--watch", "100ms", "-o", "jsonl"), looks(bad, fine)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("line", [["--watch", "soon"], ["--watch", "1ms"], ["-o", "xml"]])
def test_wrong_options(line: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        options(*line)
    assert raised.value.code == 2


def test_who_is_not_at_a_terminal_has_to_say_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert consent.agreed(options("--yes"), "drain node a")
    with pytest.raises(UsageError, match=r"drain node a.*--yes"):
        consent.agreed(options(), "drain node a")


@pytest.mark.parametrize(("answer", "wanted"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_who_is_at_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str, wanted: bool) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    talk = Terminal()
    monkeypatch.setattr(sys, "stderr", talk)
    assert consent.agreed(options(), "drain node a") is wanted
    asked = talk.getvalue()
    assert asked.startswith("Drain node a? [y/N]") and ("nothing was changed" in asked) is not wanted


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such thing"), 2, "pegaflow status: no such thing\n"),
        (RemoteError(ErrorCode.DEADLINE, "late"), 1, "pegaflow status: deadline: late\n"),
        (KeyError("x\ny"), 1, "pegaflow status: internal: KeyError: 'x\\ny' (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_whatever_goes_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(status, "run", run)
    assert tool.main(["status"]) == code
    assert capsys.readouterr().err == line
    if isinstance(error, Exception):
        assert tool.main(["status", "--debug"]) == code
        assert "Traceback" in capsys.readouterr().err


def test_help_groups_the_commands_by_question(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        tool.main(["--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    for question, modules in tool.QUESTIONS:
        assert question in shown
        for module in modules:
            assert f"  {module.NAME}" in shown and module.HELP in shown
    assert "{" not in shown, "no list of choices"


ASKS_NOBODY = {"config", "completion", "keys"}


def test_every_command_has_options_that_mean_the_same() -> None:
    for leaf in tool.leaves(tool.build()):
        flags = {flag for action in leaf._actions for flag in action.option_strings}
        assert {"--debug", "--help"} <= flags, leaf.prog
        command = leaf.prog.split()[1]
        assert "--timeout" in flags or command in ASKS_NOBODY, leaf.prog
        if command not in {"check", *ASKS_NOBODY}:
            assert ("--output" in flags) != ("--yes" in flags), f"{leaf.prog} shows, or changes and asks before"
