"""The pure parts of scripts/bench/router: framing, counting, answers, and how rounds become rows."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.routers.answers import json_answer, read, streamed, whole
from bench.routers.events import Events
from bench.routers.figures import Rounds, Span, slope
from bench.routers.framing import Framing, Head, Piece
from bench.routers.question import Question
from bench.routers.rows import ALONE, OURS, THEIRS, memory_row, rows
from bench.routers.words import FIRST_ID, text

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
CHAT = Question("chat", True, 5)


def span(p50_us: float = 100.0, *, chunks: int = 0, cpu_s: float = 1.0, seconds: float = 1.0) -> Span:
    return Span(seconds=seconds, answers=10, chunks=chunks, p50_us=p50_us, p99_us=2 * p50_us, first_us=p50_us, cpu_s=cpu_s)


def bodies(pieces: list[Piece]) -> list[bytes]:
    """Of the messages that ended, in order."""
    found, body = [], b""
    for piece in pieces:
        if isinstance(piece, bytes):
            body += piece
        elif piece is None:
            found.append(body)
            body = b""
    return found


def streamed_body(question: Question, body: bytes) -> bytes:
    return bodies(Framing().feed(b"".join(streamed(read(question.endpoint == "chat", body)))))[0]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_messages_cut_anywhere_are_the_same_messages(step: int) -> None:
    stream = b"".join(streamed(read(True, CHAT.body)))
    sent = CHAT.raw + json_answer({"a": 1}) + stream + json_answer({}) + b"GET / HTTP/1.1\r\n\r\n"
    framing = Framing()
    pieces = [piece for at in range(0, len(sent), step) for piece in framing.feed(sent[at : at + step])]
    found = bodies(pieces)
    assert found[0] == CHAT.body and found[1] == b'{"a":1}' and found[3:] == [b"{}", b""]
    assert found[2].startswith(b"data: ") and found[2].endswith(b"[DONE]\n\n")
    heads = [piece for piece in pieces if isinstance(piece, Head)]
    assert [head.line.split(b" ")[0] for head in heads] == [b"POST", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"GET"]
    assert heads[0].fields[b"content-type"] == b"application/json"


def test_an_answer_that_only_its_connection_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="without a length"):
        Framing().feed(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_events_are_counted_however_they_are_cut(step: int) -> None:
    events = Events()
    body = streamed_body(CHAT, CHAT.body)
    for at in range(0, len(body), step):
        events.feed(body[at : at + step])
    assert events.count == CHAT.events == 7


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_backend_gives_the_right_answer(endpoint: str) -> None:
    question = Question(endpoint, True, 5)
    assert question.read(streamed_body(question, question.body)) == question.text == " w0 w1 w2 w3 w4"
    question = question._replace(stream=False)
    assert question.read(bodies(Framing().feed(whole(read(endpoint == "chat", question.body))))[0]) == question.text


def test_an_answer_with_an_event_too_few_is_not_read() -> None:
    body = streamed_body(CHAT, CHAT.body)
    with pytest.raises(ValueError, match="6 events, wanted 7"):
        CHAT.read(b"\n\n".join(body.split(b"\n\n")[1:]))


def test_prefill_names_ids_and_decode_goes_on_behind_them() -> None:
    """As with `--pd-first-token`."""
    asked = json.loads(CHAT.body) | {"stream": False, "max_tokens": 1, "return_token_ids": True}
    said = json.loads(bodies(Framing().feed(whole(read(True, json.dumps(asked).encode()))))[0])
    ids, token = said["prompt_token_ids"], said["choices"][0]["token_ids"]
    assert token == [FIRST_ID] and len(ids) > 200 and max(ids) < FIRST_ID
    asked = json.loads(CHAT.body) | {"max_tokens": 4, "kv_transfer_params": {"prompt_token_ids": ids + token}}
    asked["return_token_ids"] = True
    events = [json.loads(line[6:]) for line in streamed_body(CHAT, json.dumps(asked).encode()).splitlines() if b"{" in line]
    assert events[0]["prompt_token_ids"] == ids + token
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == text(1, 4)
    assert [event["choices"][0]["token_ids"] for event in events[1:]] == [[FIRST_ID + n] for n in (1, 2, 3, 4)]


def test_a_prefill_engine_says_where_its_blocks_are_only_when_asked() -> None:
    asked = json.loads(CHAT.body) | {"stream": False}
    for kv, there in ((None, False), ({"do_remote_decode": True}, True)):
        raw = json.dumps(asked | {"kv_transfer_params": kv}).encode()
        said = json.loads(bodies(Framing().feed(whole(read(True, raw))))[0])
        assert (said["kv_transfer_params"] is not None) is there


def test_what_is_added_is_the_median_of_differences_within_rounds() -> None:
    """A machine that is ten times as slow in one round moves nothing of it."""
    found = Rounds()
    for slow in (1, 10, 1):
        found.add(ALONE, span(100.0 * slow))
        found.add(OURS, span(300.0 * slow))
    assert found.added(OURS, ALONE, lambda one: one.p50_us) == 200
    assert found.median(OURS, lambda one: one.p50_us) == 300


def test_what_is_done_per_core_counts_the_routers_cpu_and_not_the_clock() -> None:
    found = Rounds()
    for _ in range(2):
        found.add(ALONE, span(50.0))
        found.add(OURS, span(chunks=3000, cpu_s=0.5, seconds=2.0))
        found.add(THEIRS, span(chunks=8000, cpu_s=1.0))
    row = next(row for row in rows(True, 16, found) if row["through"] == OURS)
    assert (row["chunks/s"], row["chunks/s/core"], row["cores"]) == (1500, 6000, 0.25)
    assert row["/vllm-router, per core"] == 0.75
    alone = next(row for row in rows(True, 16, found) if row["through"] == ALONE)
    assert alone["added p50 us"] == "" and "cores" not in alone


def test_a_peer_that_is_not_there_is_not_in_the_row() -> None:
    found = Rounds()
    found.add(ALONE, span())
    found.add(OURS, span())
    assert all("/vllm-router, per core" not in row for row in rows(False, 1, found))


def test_no_answers_are_no_figure() -> None:
    with pytest.raises(ValueError):
        Rounds().add(OURS, span()._replace(answers=0))


def test_the_slope_is_what_a_request_leaves_behind() -> None:
    points = [(0.0, 1e6), (1000.0, 1.1e6), (2000.0, 1.2e6)]
    assert slope(points) == pytest.approx(100.0)
    assert memory_row(OURS, 5, points)["bytes/request"] == pytest.approx(100.0)
    with pytest.raises(ValueError):
        slope(points[:1])


@pytest.mark.parametrize(
    "missing, asked, added_ms, code",
    [
        ({}, (), 1.0, 0),
        ({}, (), 2.0, 3),
        ({"nginx": "not installed (apt-get install nginx)\nand more"}, (), 1.0, 3),
        ({"nginx": "--no-peers"}, ("--no-peers",), 1.0, 0),
    ],
)
def test_peers_that_are_there_have_versions_and_others_their_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: dict[str, str], asked: tuple[str, ...], added_ms: float, code: int
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    router, report = importlib.import_module("router"), importlib.import_module("report")

    class Nobody:
        """Instead of processes."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def helper(self, *_: object) -> Any:
            return self

        def ready(self) -> Any:
            return self

    out = tmp_path / "out.json"
    monkeypatch.setattr(router, "Children", Nobody)
    monkeypatch.setattr(router, "start_sides", lambda *_, **__: ([], missing, {THEIRS: "vllm-router==0.1.17"}))
    monkeypatch.setattr(router, "loads", lambda *_: None)
    monkeypatch.setattr(router, "rows", lambda *_: [])
    monkeypatch.setattr(router, "goals", lambda *_: [report.at_most("added p50, ms", added_ms, 1.5)])
    monkeypatch.setattr(sys, "argv", ["router", "--only", "load", *asked, "--json", str(out)])
    assert router.main() == code
    rows_found = json.loads(out.read_text())["rows"]
    assert {"peer": THEIRS, "as": "vllm-router==0.1.17"} in rows_found
    assert [row for row in rows_found if "left out" in row] == report.left_out(missing)


def test_peers_versions_are_those_that_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sides = importlib.import_module("routers.sides")
    program = tmp_path / "nginx"
    program.write_text("#!/bin/sh\necho 'nginx version: nginx/1.22.1' >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr(importlib.import_module("routers.nginx"), "_program", lambda: program)
    assert sides.VERSIONS["nginx"]() == "nginx/1.22.1" and "==" in sides.VERSIONS[THEIRS]()


def test_peers_that_nobody_wants_are_left_out_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sides = importlib.import_module("routers.sides")
    monkeypatch.setattr(sides, "_backend", lambda _: 1)
    monkeypatch.setattr(sides, "_check", lambda *_: None)
    monkeypatch.setattr(sides, "start_pegaflow_router", lambda *_, **__: 1)
    found, missing, about = sides.start_sides(None, [], peers=False)
    assert [side.name for side in found][:2] == [ALONE, OURS] and about == {}
    assert set(missing.values()) == {"--no-peers"} and {"nginx", THEIRS} < set(missing)
