"""What the inspection tool prints, and what it refuses."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.bus.endpoint import check_endpoint
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import EventHeader, encode, open_envelope
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.catalogue import Delta, NodeUp
from pegaflow.common.wire.messages.operate import Pong
from pegaflow.services.cli import monitor, status, top
from pegaflow.services.cli.__main__ import build, main
from pegaflow.services.cli.config import DEFAULT_METASERVER
from pegaflow.services.cli.listing import Listing, Output
from pegaflow.services.cli.summary import as_object, summary
from pegaflow.services.cli.table import size, span, table
from pegaflow.services.cli.tap import Tapped
from pegaflow.services.cli.target import UsageError, at_router, choose
from pegaflow.services.cli.thresholds import State
from wire_samples import MESSAGES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (3 << 30, "3GiB"),
        (5 << 50, "5120TiB"),
        (None, "-"),
        ("x", "-"),
    ],
)
def test_sizes(value: object, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0s"), (59_900, "59.9s"), (60_000, "1m0s"), (3_600_000, "1h0m"), (90_061_000, "1d1h"), (None, "-"), (True, "-")],
)
def test_spans(value: object, text: str) -> None:
    assert span(value) == text


def test_a_table_is_as_wide_as_its_longest_value() -> None:
    assert table(("A", "B"), [("long value", "x"), ("y", "")]) == "A           B\nlong value  x\ny\n"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_every_message_has_a_summary_of_one_line_and_an_object(message: Any) -> None:
    line = summary(message)
    assert "\n" not in line and len(line) < 600
    assert json.loads(json.dumps(as_object(message))).keys() == as_object(message).keys()


def test_a_delta_is_counted_and_its_keys_shown() -> None:
    keys = [bytes(16) + bytes([n]) * 8 for n in range(6)]
    line = summary(Delta(keys, bytes([2, 2, 0, 1, 2, 2]), bytes(6), u32s([1] * 6)))
    assert line == f"1 gone, 1 pending, 4 sealed: {' '.join(key[-8:].hex() for key in keys[:4])} …"


def tapped(kind: bytes = b"\1node_up", lost: int = 0) -> Tapped:
    frames = encode(NodeUp("a", 7, "tcp://h:1"), EventHeader("m", 9, 3), b"n")
    envelope = open_envelope([frames[0], kind, *frames[2:]], EventHeader)
    message = NodeUp("a", 7, "tcp://h:1") if kind == b"\1node_up" else None
    return Tapped("tcp://h:2", envelope, envelope.header, message, "" if message else "unsupported: what", lost)


def test_a_line_for_people() -> None:
    assert monitor._text_line(tapped(), False).split(" ", 1)[1] == "m n node_up 3 node=a epoch=7 requests=tcp://h:1"
    assert monitor._text_line(tapped(lost=2), False).split(" ", 1)[1].startswith("m n node_up 3 (2 lost) node=a")
    assert monitor._text_line(tapped(b"\1new_kind"), False).endswith("m n new_kind 3 unsupported: what")
    assert " 14 bytes 93a161" in monitor._text_line(tapped(), True)


def test_a_line_for_programs() -> None:
    line = json.loads(monitor._json_line(tapped(lost=1), False))
    assert line.pop("time") > 0
    assert line == {
        "endpoint": "tcp://h:2",
        "node": "m",
        "epoch": "0000000000000009",
        "topic": "n",
        "kind": "node_up",
        "seq": 3,
        "lost": 1,
        "message": {"node": "a", "epoch": 7, "requests": "tcp://h:1"},
    }
    assert json.loads(monitor._json_line(tapped(b"\1new_kind"), False))["wrong"] == "unsupported: what"
    assert json.loads(monitor._json_line(tapped(), True))["body"].startswith("93a161")


@pytest.mark.parametrize(
    "document", [{}, {"pages": 3, "sessions": None}, {"pages": [], "pool_bytes": "?", "state": 7, "keys": None}]
)
def test_a_status_with_other_fields_than_expected_is_shown_all_the_same(document: dict[str, Any]) -> None:
    row = status.present("tcp://h:1", Pong("tier", "a", 7, "0.1.0", 5), document)
    for output in Output:
        assert "tier" in Listing(status.COLUMNS, [row]).render(output)


def args(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **({"metaserver": None, "tier": None, "timeout": None, "config": None, "curve_key_file": None} | given)
    )


def test_where_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PEGAFLOW_CONFIG", raising=False)
    for name in ("METASERVER", "ROUTER"):
        monkeypatch.delenv(f"PEGAFLOW_CLI_{name}", raising=False)
    assert choose(args()) == ((DEFAULT_METASERVER,), (), 2.0, None, ())
    assert choose(args(tier=["tcp://t:1"])) == ((), ("tcp://t:1",), 2.0, None, ())
    file = tmp_path / "c.toml"
    file.write_text('[cli]\nmetaserver = ["tcp://f:1"]\ntimeout = "1s"\n')
    assert choose(args(config=str(file))) == (("tcp://f:1",), (), 1.0, None, ())
    monkeypatch.setenv("PEGAFLOW_CLI_METASERVER", "tcp://e:1,tcp://e:2")
    assert choose(args(config=str(file), timeout="500ms")) == (("tcp://e:1", "tcp://e:2"), (), 0.5, None, ())
    monkeypatch.setenv("PEGAFLOW_CLI_ROUTER", "tcp://r:1")
    assert choose(args()).routers == ("tcp://r:1",)
    assert choose(args(routers=["tcp://r:2"])).routers == ("tcp://r:2",)
    assert choose(args(tier=["tcp://t:1"])).routers == (), "what the command line names replaces all others"
    assert choose(args(tier=["tcp://t:1"], routers=["tcp://r:2"])).routers == ("tcp://r:2",)
    assert check_endpoint(DEFAULT_METASERVER) == DEFAULT_METASERVER


def test_which_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is named, else the only one that is configured."""
    monkeypatch.delenv("PEGAFLOW_CONFIG", raising=False)
    monkeypatch.delenv("PEGAFLOW_CLI_ROUTER", raising=False)
    assert at_router(args(router="tcp://r:1", timeout="2s")).tiers == ("tcp://r:1",)
    with pytest.raises(UsageError, match="no router is in the configuration"):
        at_router(args(router=None, timeout="2s"))
    monkeypatch.setenv("PEGAFLOW_CLI_ROUTER", "tcp://r:2")
    assert at_router(args(router=None, timeout="2s"))[:2] == ((), ("tcp://r:2",))
    monkeypatch.setenv("PEGAFLOW_CLI_ROUTER", "tcp://r:2,tcp://r:3")
    with pytest.raises(UsageError, match="several routers are in the configuration"):
        at_router(args(router=None, timeout="2s"))


def test_a_command_at_a_router_reads_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PEGAFLOW_CONFIG", "PEGAFLOW_CLI_ROUTER", "PEGAFLOW_CLI_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "c.toml"
    file.write_text('[cli]\nrouter = ["tcp://r:1"]\ntimeout = "7s"\n')

    def at(*line: str) -> tuple[tuple[str, ...], float]:
        return at_router(build().parse_args(["engine", "list", *line]))[1:3]

    assert at("--config", str(file)) == (("tcp://r:1",), 7.0)
    assert at("--config", str(file), "--router", "tcp://r:2") == (("tcp://r:2",), 7.0)
    monkeypatch.setenv("PEGAFLOW_CLI_TIMEOUT", "5s")
    assert at("--config", str(file)) == (("tcp://r:1",), 5.0)
    assert at("--router", "tcp://r:2", "--timeout", "3s") == (("tcp://r:2",), 3.0)
    monkeypatch.delenv("PEGAFLOW_CLI_TIMEOUT")
    assert at("--router", "tcp://r:2")[1] == 2.0


def test_the_help_of_top_names_columns_that_there_are() -> None:
    assert set(re.findall(r"\b[A-Z]{3,}\b", top.__doc__ or "")) <= {column.head for column in top.COLUMNS}


@pytest.mark.parametrize(
    "wrong",
    [
        {"routers": ["x"]},
        {"metaserver": ["x"]},
        {"tier": ["tcp://h"]},
        {"timeout": "soon"},
        {"timeout": "0s"},
        {"config": "/no"},
    ],
)
def test_what_cannot_be_looked_at(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        choose(args(**wrong))


@pytest.mark.parametrize("line", [[], ["what"], ["monitor", "-n", "0"], ["monitor", "--for", "soon"], ["status", "-o", "xml"]])
def test_wrong_usage_is_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line)
    assert caught.value.code == 2
    assert "usage: pegaflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", [["check"], ["check", "what"], ["check", "ping", "--what"], ["check", "ping", "--format", "xml"]]
)
def test_wrong_usage_of_a_check_is_unknown_to_a_monitor(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line)
    assert caught.value.code == State.UNKNOWN
    assert "usage: pegaflow check" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyError("x"), RemoteError("deadline", "no answer"), UsageError("no"), BrokenPipeError()])
def test_a_check_that_fails_itself_is_unknown_to_a_monitor(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 would be a warning, 2 critical, and 0 well."""

    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("pegaflow.services.cli.check._measured", fails)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert main(["check", "ping"]) == State.UNKNOWN


def test_a_bad_endpoint_is_2_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--events", "udp://h:1"]) == 2
    assert "udp://h:1" in capsys.readouterr().err
