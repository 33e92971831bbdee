"""Which messages `pegaflow monitor --filter` shows."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from pegaflow.common.bus.events import session_topic
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import EventHeader, encode, open_envelope
from pegaflow.common.wire.messages.attach import SessionBeat
from pegaflow.common.wire.messages.catalogue import Delta, NodeUp
from pegaflow.common.wire.messages.saves import IntentSeen
from pegaflow.services.cli.__main__ import build, main
from pegaflow.services.cli.filter import Field, Filter, engines_of
from pegaflow.services.cli.tap import Tapped

KEY = bytes.fromhex("f1" * 16 + "ab12" + "00" * 30)
ENGINES = {7: "p1", 8: "d1"}


def tapped(message: Any, topic: bytes, node: str = "a") -> Tapped:
    envelope = open_envelope(encode(message, EventHeader(node, 9, 3), topic), EventHeader)
    return Tapped("tcp://h:2", envelope, envelope.header, message, "", 0)


UP = tapped(NodeUp("b", 7, "tcp://h:1"), b"n", node="m")
DELTA = tapped(Delta([bytes(48), KEY], b"\2\2", b"\0\0", u32s([1, 1])), b"c")
SEEN = tapped(IntentSeen(7, 1, [KEY], b"\0", ["cmpl-1-a", "cmpl-2"]), b"i")
BEAT = tapped(SessionBeat(), session_topic(8))
ALL = {"up": UP, "delta": DELTA, "seen": SEEN, "beat": BEAT}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("node=a", {"delta", "seen", "beat"}),
        ("node=m", {"up"}),
        ("node=b", {"up"}),
        ("node=", None),
        ("kind=delta", {"delta"}),
        ("kind=del", set()),
        ("engine=p1", {"seen"}),
        ("engine=d1", {"beat"}),
        ("engine=d", set()),
        ("request=cmpl-1", {"seen"}),
        ("request=cmpl-2", {"seen"}),
        ("request=mpl", set()),
        ("request=t", set()),  # a node_up has `requests` too: an endpoint
        ("key=f1f1", {"delta", "seen"}),
        ("key=AB12", {"delta", "seen"}),
        ("key=12", set()),
        ("key=00", {"delta"}),
    ],
)
def test_what_a_filter_shows(text: str, shown: set[str] | None) -> None:
    if shown is None:
        with pytest.raises(argparse.ArgumentTypeError, match="say node=VALUE"):
            Filter.parse(text)
        return
    one = Filter.parse(text)
    assert {name for name, message in ALL.items() if one.holds(message, ENGINES)} == shown


def test_what_is_not_known_does_not_meet_any_condition() -> None:
    unread = DELTA._replace(message=None, wrong="unsupported: what")
    assert Filter(Field.KIND, "delta").holds(unread, {}) and Filter(Field.NODE, "a").holds(unread, {})
    assert not any(Filter.parse(text).holds(unread, ENGINES) for text in ("engine=p1", "request=cmpl", "key=f1"))
    assert not Filter.parse("engine=p1").holds(SEEN, {})


def test_several_filters_are_taken() -> None:
    args = build().parse_args(["monitor", "--filter", "node=a", "--filter", "kind=delta"])
    assert args.filters == [Filter(Field.NODE, "a"), Filter(Field.KIND, "delta")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nod=a", "no field 'nod'; did you mean node?"),
        ("zzz=a", "no field 'zzz'; fields are node, kind, engine, request, key"),
        ("kind", "say kind=VALUE"),
        ("key=xyz", "key=xyz is not hexadecimal"),
    ],
)
def test_a_filter_that_cannot_be_is_2_and_says_why(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["monitor", "--filter", text])
    assert caught.value.code == 2 and said in capsys.readouterr().err


def test_engines_cannot_be_told_without_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--events", "tcp://h:1", "--filter", "engine=e"]) == 2
    assert "leave --events away" in capsys.readouterr().err


def test_engines_out_of_a_status() -> None:
    rows = [{"session": f"{7:016x}", "engine": "p1"}, {"session": "zz", "engine": "x"}, {"engine": "y"}, {"session": 7}, 3, None]
    assert engines_of({"sessions": rows}) == {7: "p1"}
    assert engines_of({}) == engines_of({"sessions": 4}) == {}
