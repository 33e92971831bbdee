"""The event listener's decisions: restart what runs and does not live, nothing else, and not for ever."""

from __future__ import annotations

import errno
import io
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xmlrpc.client import dumps

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.common.config import ConfigError, resolve
from pegaflow.common.loop_watch import LoopWatch
from pegaflow.services.watch import probe
from pegaflow.services.watch.__main__ import _kill, follow
from pegaflow.services.watch.config import WatchConfig
from pegaflow.services.watch.state import Held, Restart, Rules, Watch
from pegaflow.services.watch.supervisord import Events, NoAnswer, Process, Supervisord

RULES = Rules(failures=3, within_s=30, grace_s=100, pause_s=60, pause_max_s=240)
NO = "TimeoutError: timed out"


class Script:
    def __init__(self) -> None:
        self.watch, self.now, self.pid = Watch(["t"], RULES), 1000.0, 7

    def look(self, failure: str = NO, after: float = 5.0) -> Restart | Held | None:
        self.now += after
        self.watch.seen("t", self.pid, self.now)
        verdict = self.watch.answered("t", self.pid, failure, self.now)
        self.watch.validate()
        return verdict

    def dies(self) -> Restart:
        """Fails until it is restarted, which gives it a new pid; alive at once."""
        for _ in range(1000):
            verdict = self.look()
            if isinstance(verdict, Restart):
                self.pid += 1
                self.look("")
                return verdict
        raise AssertionError("never restarted")


def test_three_failures_in_time_restart() -> None:
    script = Script()
    assert script.look("") is None
    assert script.look() is None and script.look() is None
    assert script.look() == Restart("t", 7, (NO, NO, NO), 1, 60)


def test_an_answer_between_forgives_and_failures_far_apart_do_not_add_up() -> None:
    script = Script()
    script.look("")
    for _ in range(10):
        assert script.look() is None and script.look() is None and script.look("") is None
    for _ in range(10):
        assert script.look(after=16) is None


def test_a_start_has_its_grace_which_ends_with_the_first_answer() -> None:
    script = Script()
    for _ in range(19):
        assert script.look() is None, "vLLM imports for a while"
    assert [isinstance(script.look(), Restart) for _ in range(4)] == [False, False, False, True]
    script = Script()
    script.look("")
    assert [isinstance(script.look(), Restart) for _ in range(3)] == [False, False, True]


def test_a_process_that_was_replaced_is_not_blamed_for_the_one_before() -> None:
    script = Script()
    script.look("")
    script.look(), script.look()
    old, script.pid = script.pid, 8
    script.look("")
    assert script.watch.answered("t", old, NO, script.now) is None
    assert script.look() is None and script.look() is None


def test_what_does_not_run_is_the_supervisors_business() -> None:
    script = Script()
    script.look("")
    script.pid = 0
    assert all(script.look() is None for _ in range(10))


def test_restarts_come_at_longer_and_longer_intervals_and_time_alive_makes_up() -> None:
    script = Script()
    script.look("")
    assert [script.dies().pause_s for _ in range(5)] == [60, 120, 240, 240, 240]
    assert script.look("", after=241) is None
    assert script.dies().pause_s == 60


def test_a_restart_that_has_to_wait_is_said_once() -> None:
    script = Script()
    script.look("")
    script.dies()
    verdicts = [script.look() for _ in range(8)]
    (held,) = [verdict for verdict in verdicts if isinstance(verdict, Held)]
    assert 0 < held.left_s < 60 and not any(isinstance(verdict, Restart) for verdict in verdicts)


def test_one_that_cannot_be_killed_is_not_killed_at_every_look() -> None:
    script = Script()
    script.look("")
    restarts = [isinstance(script.look(), Restart) for _ in range(100)]
    assert restarts[:3] == [False, False, True] and sum(restarts) < 6


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", NO]), st.floats(0.1, 50), st.booleans()), max_size=200))
def test_restarts_are_never_closer_than_the_pause(steps: list[tuple[str, float, bool]]) -> None:
    script, last, pause = Script(), 0.0, 0.0
    for failure, after, replaced in steps:
        script.pid += replaced
        verdict = script.look(failure, after)
        if isinstance(verdict, Restart):
            assert failure and script.now - last >= pause
            last, pause = script.now, verdict.pause_s


def test_the_listener_speaks_supervisords_protocol() -> None:
    source = io.BytesIO(
        b"ver:3.0 server:x serial:1 pool:w poolserial:1 eventname:TICK_5 len:7\nwhen:10ver:3.0 eventname:X len:0\n"
    )
    sink = io.BytesIO()
    assert list(Events(source, sink)) == ["TICK_5", "X"]
    assert sink.getvalue() == b"READY\nRESULT 2\nOKREADY\nRESULT 2\nOKREADY\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no program"),
        (["--program", "tier"], "expected PROGRAM=http"),
        (["--program", "a=http://h:1/health", "--program", "a=http://h:2/health"], "twice"),
        (["--program", "a=http://h:1/health", "--pause", "2h"], "above pause_max"),
        (["--program", "a=http://h:1/health", "--failures", "0"], "above 0"),
        (["--program", "a=http://h:port/health"], "expected PROGRAM=http"),
        (["--program", "a=http://h:99999/health"], "expected PROGRAM=http"),
    ],
)
def test_wrong_options_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(WatchConfig, section="watch", argv=words)


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[str]:
    """A supervisord of one answer; its URL."""

    def serve() -> None:
        connection, _ = server.accept()
        server.close()  # xmlrpc asks once more where nothing came
        with connection, connection.makefile("rb") as request:
            length = 0
            while (line := request.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            request.read(length)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            thread.join()


def http_answer(body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def rows(*values: Any) -> str:
    return dumps((list(values),), methodresponse=True)


ROW = {"name": "a", "statename": "RUNNING", "pid": 7}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-nobody\r\n",
        http_answer("<methodResponse><params>")[:-5],
        http_answer("<not xml"),
        http_answer("<methodResponse></methodResponse>"),
        http_answer(rows({"name": "a"})),
        http_answer(rows("a")),
        http_answer(rows(7)),
        http_answer("<methodResponse><params><param><value><int>x</int></value></param></params></methodResponse>"),
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_whatever_supervisord_answers_the_watch_lives_on(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer) as url, pytest.raises(NoAnswer):
        Supervisord(url).processes()


def test_who_runs(tmp_path: Path) -> None:
    with answering(tmp_path / "s", http_answer(rows(ROW))) as url:
        assert Supervisord(url).processes() == [Process("a", "RUNNING", 7)]
    with pytest.raises(NoAnswer):
        Supervisord(f"unix://{tmp_path}/nobody").processes()


@pytest.mark.parametrize("url", ["http://a..b:1/health", "http://h:port/", "http://[", "http://h:1/ /"])
def test_a_url_that_cannot_be_asked_is_a_failure_and_no_crash(url: str) -> None:
    assert probe.ask(url, 1.0)


def test_one_that_it_may_not_kill_is_said_and_the_others_are_still_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "getpgid", lambda pid: pid)
    monkeypatch.setattr(os, "killpg", denied)
    _kill("t", 7)
    assert [record.getMessage() for record in caplog.records] == ["cannot_kill"]


class Looks:
    """In place of a Watcher: what /health would say while it looks."""

    def __init__(self, watch: LoopWatch) -> None:
        self.watch = watch
        self.stuck: list[bool] = []

    def look(self) -> None:
        self.stuck.append(self.watch.stuck)


def test_a_watch_that_hears_no_tick_is_stuck_and_well_again_with_the_next() -> None:
    watch = LoopWatch({})
    looks = Looks(watch)

    def events() -> Iterator[str]:
        assert not watch.stuck, "it has just begun"
        watch.expect(-30.0)  # as if the time were over
        assert watch.stuck
        yield "PROCESS_STATE_RUNNING"
        assert watch.stuck, "no reason to look"
        yield "TICK_5"
        assert not watch.stuck

    follow(events(), looks, watch)  # type: ignore[arg-type]
    assert looks.stuck == [False]
    assert watch.stalled() == 0
