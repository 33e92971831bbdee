"""Log lines are JSON objects that identify their source."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from pegaflow.common import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = io.StringIO()
    logs.setup("tier", "node-a", "info", made)
    yield made
    root.handlers[:] = before
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_the_event_and_its_fields(stream: io.StringIO) -> None:
    logs.get("some.module").info("attached", engine="e1", pages=3)
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("ts")))
    assert line == {
        "level": "info",
        "service": "tier",
        "node": "node-a",
        "logger": "some.module",
        "event": "attached",
        "engine": "e1",
        "pages": 3,
    }


def test_levels_filter_and_can_be_changed(stream: io.StringIO) -> None:
    log = logs.get("m")
    log.debug("hidden")
    assert not log.enabled("debug")
    logs.set_level("debug")
    log.debug("shown")
    assert [line["event"] for line in lines(stream)] == ["shown"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is not one of debug, info, warning, error"):
        logs.set_level("loud")


def test_fields_cannot_forge_the_line_or_break_it(stream: io.StringIO) -> None:
    logs.get("m").warning("odd %s", service="fake", key=b"\x01\xff", names={"b", "a"}, text="two\nlines", err=OSError("x"))
    (line,) = lines(stream)
    assert (line["event"], line["service"], line["service_"]) == ("odd %s", "tier", "fake")
    assert (line["key"], line["names"], line["text"], line["err"]) == ("01ff", ["a", "b"], "two\nlines", "x")


def test_exceptions_carry_their_traceback_in_the_same_line(stream: io.StringIO) -> None:
    try:
        raise KeyError("missing")
    except KeyError:
        logs.get("m").exception("failed", step=2)
    (line,) = lines(stream)
    assert (line["level"], line["step"]) == ("error", 2)
    assert "KeyError: 'missing'" in str(line["traceback"])


def test_other_libraries_take_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.client").warning("closed %d", 3)
    (line,) = lines(stream)
    assert (line["event"], line["message"], line["logger"]) == ("log", "closed 3", "aiohttp.client")


def test_setup_twice_writes_once(stream: io.StringIO) -> None:
    logs.setup("router", "node-a", "info", stream)
    logs.get("m").info("once")
    assert [line["service"] for line in lines(stream)] == ["router"]
