"""Clients that ask all at once: who asks how is drawn, who goes away is no success, and who is refused asks again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import pytest

from deployment.answers import Answer
from deployment.cases import Case
from deployment.http import Server
from deployment.reference import Expected
from deployment.traffic import MIX, Kind, Mix, Outcome, Seen, Traffic, drawn

IDS = list(range(100, 108))
CLEAN = {"error": {"message": "m", "type": "server_error", "code": "busy"}}


class Engine(ThreadingHTTPServer):
    """Answers every completion with IDS, an id an event; `refuses`: each the first time. `wrong`: an id is not right."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.refuses, self.wrong = Lock(), False, False
        self.asked: list[tuple[str, bool]] = []
        """Name, and whether as a stream."""

    def handle_error(self, *_: object) -> None:
        """A client that goes away is none."""


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            refused = self.server.refuses and body["name"] not in {name for name, _ in self.server.asked}
            self.server.asked.append((body["name"], body.get("stream", False)))
        ids = [*IDS[:1], 7, *IDS[2:]] if self.server.wrong else IDS
        self.send_response(503 if refused else 200)
        self.end_headers()
        if refused:
            self.wfile.write(json.dumps(CLEAN).encode())
        elif body.get("stream"):
            for one in ids:
                ended = "length" if one == ids[-1] else None
                self._say(json.dumps({"choices": [{"token_ids": [one], "text": "x", "finish_reason": ended}]}))
            self._say("[DONE]")
        else:
            choice = {"token_ids": ids, "text": "x" * len(ids), "finish_reason": "length"}
            self.wfile.write(json.dumps({"choices": [choice]}).encode())

    def _say(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def cases(count: int) -> list[Expected]:
    answer = Answer((), tuple(IDS), "x" * len(IDS), "length", None)
    return [Expected(Case(f"case {i}", "/v1/completions", {"name": f"case {i}"}), answer) for i in range(count)]


def played(engine: Engine, mix: Mix, *, seed: int = 0) -> tuple[Traffic, list[Outcome]]:
    with Traffic(Server(engine.server_port), cases(5), 12, clients=3, seed=seed, mix=mix) as traffic:
        pass
    return traffic, traffic.wait()


def test_who_goes_away_is_no_right_answer_and_no_refusal(engine: Engine) -> None:
    traffic, outcomes = played(engine, Mix(streams=0.7, leavers=0.5, least=2))
    kinds = Counter(request.kind for request in traffic.requests)
    assert kinds[Kind.LEAVER] >= 2
    assert Counter(one.seen for one in outcomes) == {Seen.LEFT: kinds[Kind.LEAVER], Seen.RIGHT: 12 - kinds[Kind.LEAVER]}
    assert traffic.done() == len(engine.asked) == 12


def test_what_somebody_heard_before_it_went_away_has_to_be_right(engine: Engine) -> None:
    engine.wrong = True
    _, outcomes = played(engine, Mix(streams=1.0, leavers=1.0))
    assert {one.seen for one in outcomes} == {Seen.WRONG}


def test_who_is_refused_asks_again_the_same_way(engine: Engine) -> None:
    engine.refuses = True
    traffic, outcomes = played(engine, Mix(streams=0.5, leavers=0.5, least=1), seed=3)
    seen = Counter(one.seen for one in outcomes)
    leavers = sum(request.kind is Kind.LEAVER for request in traffic.requests)
    refused = {request.case for request in traffic.requests}
    assert seen == {Seen.REFUSED: len(refused), Seen.LEFT: leavers, Seen.RIGHT: 12 - leavers}
    drawn_ones = Counter((f"case {request.case}", request.kind is not Kind.PIECE) for request in traffic.requests)
    assert Counter(engine.asked) - drawn_ones == Counter(dict(reversed(engine.asked)).items()), "each once more, as at first"


def test_what_is_drawn_depends_on_the_seed_and_keeps_the_shares() -> None:
    assert drawn(11, 50, 1, MIX) == drawn(11, 50, 1, MIX) != drawn(11, 50, 2, MIX)
    many = drawn(11, 20_000, 0, MIX)
    kinds, places = Counter(one.kind for one in many), Counter(one.case for one in many)
    assert kinds[Kind.PIECE] / 20_000 == pytest.approx(MIX.streams, abs=0.02)
    assert kinds[Kind.LEAVER] / 20_000 == pytest.approx(MIX.streams * MIX.leavers, abs=0.005)
    assert places[0] > 5 * places[10] > 0


@pytest.mark.parametrize("mix", [Mix(0.0, 0.0, 2), Mix(1.0, 1.0, 2), Mix(1.0, 0.0, 2)])
def test_there_are_some_of_each_kind_whatever_the_shares(mix: Mix) -> None:
    for seed in range(20):
        kinds = Counter(one.kind for one in drawn(3, 6, seed, mix))
        assert kinds == dict.fromkeys(Kind, 2)


def test_too_few_for_some_of_each_kind() -> None:
    with pytest.raises(ValueError, match="cannot be 2 of each kind"):
        drawn(3, 5, 0, Mix(0.5, 0.5, 2))
