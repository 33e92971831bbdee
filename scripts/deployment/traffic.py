"""Clients that ask a router all at once, and know what is right."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from deployment.answers import Answer, ask
from deployment.http import HttpFailure, Server
from deployment.reference import Expected

BACK_OFF_SECONDS: Final = 0.2
"""A client that was refused asks again so much later."""


class Seen(StrEnum):
    """What a client saw. WRONG is the one that must never be."""

    RIGHT = "right"
    WRONG = "wrong"
    LEFT = "left"
    """The client went away in mid-answer; what it had until then was right."""
    REFUSED = "refused"
    """A status from 500 on, or 429, and OpenAI's error object, before anything else."""
    UNCLEAN = "unclean"
    """Any other status: the client has done nothing wrong, and may rely on the error's shape. It must not be either."""
    BROKEN = "broken"
    """An error inside the stream; what came before it was right."""
    NO_ANSWER = "no answer"
    """The connection was refused or lost."""


class Outcome(NamedTuple):
    case: str
    seen: Seen
    text: str


class Kind(StrEnum):
    """How a client asks."""

    PIECE = "in one piece"
    STREAM = "stream"
    LEAVER = "leaver"
    """A stream whose client goes away once it has more than one id."""


class Mix(NamedTuple):
    """`streams`: their share of all requests; `leavers`: theirs of the streams; `least`: so many there are of each kind."""

    streams: float
    leavers: float
    least: int = 0


MIX: Final = Mix(streams=0.5, leavers=0.04)
"""Of many requests, nearly all of which are to be compared as a whole."""


class Request(NamedTuple):
    """`case`: its place in the list of those that may be asked."""

    case: int
    kind: Kind


def drawn(cases: int, count: int, seed: int, mix: Mix) -> list[Request]:
    """`count` requests; a case at the front is asked more often. Raises ValueError for fewer than the mix has at least."""
    if count < mix.least * len(Kind):
        raise ValueError(f"{count} requests cannot be {mix.least} of each kind")
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(cases)]
    places, kinds = list[int](), list[Kind]()
    for _ in range(count):
        places += chance.choices(range(cases), weights)
        streams, leaves = chance.random() < mix.streams, chance.random() < mix.leavers
        kinds.append(Kind.PIECE if not streams else Kind.LEAVER if leaves else Kind.STREAM)
    for kind in Kind:
        while kinds.count(kind) < mix.least:
            others = [at for at, other in enumerate(kinds) if kinds.count(other) > mix.least]
            kinds[chance.choice(others)] = kind
    return [Request(*one) for one in zip(places, kinds, strict=True)]


class Traffic:
    """`clients` at a time, until `count` requests were answered. Use as a context manager: the end waits for all of them,
    unless it is an exception's.

    A refused one, or one without an answer, is an outcome too, but it is asked again: a service that is dead for a minute would
    use them all up. Who goes away has been answered.

    `requests`: what is asked, in this order; it depends on `seed` and `mix` only.
    """

    def __init__(
        self,
        server: Server,
        expected: Sequence[Expected],
        count: int,
        *,
        clients: int = 16,
        seed: int = 0,
        mix: Mix = MIX,
    ) -> None:
        self._server, self._expected = server, expected
        self.requests = tuple(drawn(len(expected), count, seed, mix))
        self._next = deque(self.requests)
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []
        self._answered = 0
        self._over = False
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name=f"client-{i}") for i in range(clients)]

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with self._lock:
                self._over = True
                self._next.clear()
        self.wait()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self) -> list[Outcome]:
        """Every outcome. Raises what ended a client."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._outcomes

    def done(self) -> int:
        """How many were answered. Raises what ended a client."""
        if self._failure is not None:
            raise self._failure
        return self._answered

    def counts(self) -> Counter[Seen]:
        return Counter(outcome.seen for outcome in list(self._outcomes))

    def _run(self) -> None:
        idle = threading.Event()
        try:
            while True:
                with self._lock:
                    if not self._next:
                        return
                    request = self._next.popleft()
                outcome = self._asked(request)
                refused = outcome.seen in (Seen.REFUSED, Seen.UNCLEAN, Seen.NO_ANSWER)
                with self._lock:
                    self._outcomes.append(outcome)
                    self._answered += not refused
                    if refused and not self._over:
                        self._next.appendleft(request)
                if refused:
                    idle.wait(BACK_OFF_SECONDS)
        except BaseException as error:
            self._failure = error
            raise

    def _asked(self, request: Request) -> Outcome:
        expected = self._expected[request.case]
        if request.kind is Kind.PIECE:
            return _ask(self._server, expected)
        leaves = request.kind is Kind.LEAVER
        return follow(self._server, expected, lambda ids: not leaves or len(ids) <= 1)


def _ask(server: Server, expected: Expected) -> Outcome:
    case = expected.case
    try:
        answer = ask(server, case)
    except HttpFailure as failure:
        return Outcome(case.name, refusal(failure), str(failure))
    return _judged(expected, answer)


def refusal(failure: HttpFailure) -> Seen:
    """What an answer is that is none."""
    if not failure.status:
        return Seen.NO_ANSWER
    try:
        error = json.loads(failure.text)["error"]
        clean = all(isinstance(error[name], str) and error[name] for name in ("message", "type", "code"))
    except (ValueError, LookupError, TypeError):
        clean = False
    return Seen.REFUSED if clean and (failure.status >= 500 or failure.status == 429) else Seen.UNCLEAN


def _judged(expected: Expected, answer: Answer) -> Outcome:
    right = expected.answer
    if (answer.ids, answer.text, answer.finish_reason) == (right.ids, right.text, right.finish_reason):
        return Outcome(expected.case.name, Seen.RIGHT, "")
    return Outcome(expected.case.name, Seen.WRONG, f"{answer} instead of {right}")


def follow(server: Server, expected: Expected, heard: Callable[[Sequence[int]], bool]) -> Outcome:
    """One stream. `heard` gets the ids so far after each event; False: the client leaves."""
    case, right = expected.case, expected.answer
    ids: list[int] = []
    text, finish_reason, begun = "", None, False
    ended = Seen.LEFT
    said = ""
    try:
        for _, event in server.stream(case.path, case.body):
            begun = True
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
                text += choice.get("text") or ""
                finish_reason = choice.get("finish_reason") or finish_reason
            if not heard(ids):
                break
        else:
            return _judged(expected, Answer((), tuple(ids), text, finish_reason, None))
    except HttpFailure as failure:
        said = str(failure)
        ended = refusal(failure)
        if failure.status == 200:
            ended = Seen.BROKEN if "error" in said else Seen.WRONG  # an end without [DONE] and without an error is no clean one
    if begun and tuple(ids) != right.ids[: len(ids)]:
        return Outcome(case.name, Seen.WRONG, f"{ids} is no beginning of {list(right.ids)}")
    return Outcome(case.name, ended, said)
