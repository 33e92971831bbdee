"""The answer being read: what an engine says, turned into what the client gets. Pure.

Chunks are held until the engine has said something of the answer itself; so a flow can be begun again, with another
engine or in another way, while the client has not had a byte.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pegaflow.services.router.decode import DecodeLeg
from pegaflow.services.router.merge import Passthrough, StreamMerger
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json, error_in, frame
from pegaflow.services.router.pattern import Pattern
from pegaflow.services.router.prefill import DEAD_ENDS, Malformed, PrefillAnswer
from pegaflow.services.router.spoken import Diverged, Spoken
from pegaflow.services.router.whole import Collector, merge_answers, stripped_answer

LESSONS: Final = 4
"""After so many chunks that were each unlike the one before no pattern is looked for: with logprobs none is alike."""
_TEXT: Final = {Endpoint.CHAT: "content", Endpoint.COMPLETIONS: "text"}


class Broken(Exception):
    """The engine's answer broke off, or cannot be read. `final`: no engine can go on with it."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class OtherIds(Exception):
    """The engine did not take the prompt ids it was given: it named others, or none."""


class Read(NamedTuple):
    """What one frame brought: chunks for the client, None while it is to get nothing yet; whether the engine has just
    been seen to take ids; whether the answer is whole.
    """

    chunks: list[Json] | None = None
    verified: bool = False
    over: bool = False


class Answering:
    """One answer. `ended`: its finish reason came, so only `[DONE]` may be missing."""

    def __init__(self, request: ClientRequest, prefill: PrefillAnswer | None, leg: DecodeLeg) -> None:
        self.leg = leg
        self.ended = False
        self._request = request
        self._prefill = prefill
        self._merger: StreamMerger | Passthrough
        if leg.continued and prefill is not None:
            self._merger = StreamMerger(request, prefill, leg)
        else:
            self._merger = Passthrough(request, prefill)
        self._collector: Collector | None = None
        if leg.stream and not request.stream:
            assert prefill is not None, "only the router's own search for stop strings needs a stream that nobody asked for"
            self._collector = Collector(request, prefill)
        self._held = self._merger.open()
        self._opened = False  # the engine has said something
        self._pattern: Pattern | None = None
        self._lessons = 0  # chunks that were looked at for a pattern, since one had it
        self._verified = leg.verify is None

    def whole(self, body: bytes) -> Json:
        """An answer that is not a stream. Raises Broken, or OtherIds."""
        leg = self.leg
        try:
            payload = json.loads(body)
            if leg.stream or not isinstance(payload, dict):
                raise Broken("not an event stream" if leg.stream else "not an object")
            wrong = _wrong(payload)
            if wrong is not None:
                raise Broken(wrong)
            self._verify(payload)
            if leg.continued and self._prefill is not None:
                return merge_answers(self._request, self._prefill, leg, payload)
            return stripped_answer(self._request, payload, self._prefill)
        except (Malformed, ValueError) as error:
            raise Broken(str(error)) from None

    def quick(self, data: str) -> str | None:
        """PERF: the client's event for a frame that differs from one before only in its text and ids; None: it is for
        :meth:`frame`. A token costs a few comparisons so, and no JSON.
        """
        pattern = self._pattern
        if pattern is None:
            return None
        said = pattern.read(data)
        if said is None:
            return None
        self._lessons = 0
        self._merger.said(said)
        return pattern.write(said)

    def frame(self, data: str) -> Read:
        """One frame of a stream. Raises Broken, or OtherIds."""
        if data == "[DONE]":
            if not self.ended:
                raise Broken("[DONE] came before a finish reason")
            return Read(over=True)
        try:
            payload = json.loads(data)
        except ValueError as error:
            raise Broken(f"a frame is not JSON: {error}") from None
        if not isinstance(payload, dict):
            raise Broken("a frame is not an object")
        wrong = _wrong(payload)
        if wrong is not None:
            raise Broken(wrong)
        verified = self._verify(payload)
        try:
            told, ended = _told(payload)
            chunks = self._merger.add(payload)
        except Diverged:
            raise Broken("the engine that went on said something else", final=True) from None
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise Broken(f"a frame cannot be read: {error!r}") from None
        self.ended = self.ended or ended
        shown = self._take(chunks, begin=told)
        if self._lessons < LESSONS and self._opened and not self.ended:
            self._learn(data, payload, chunks)
        return Read(shown, verified, self._merger.stopped)

    def close(self) -> list[Json] | None:
        """What follows the last frame; like `Read.chunks`."""
        return self._take(self._merger.close(), begin=True)

    def collected(self) -> Json | None:
        """After `close`: the whole answer, where the leg was streamed for a client that does not stream."""
        if self._collector is None:
            return None
        assert isinstance(self._merger, StreamMerger)
        return self._collector.answer(self._merger.counted_usage())

    def resumable(self, *, greedy: bool) -> bool:
        """Whether another engine can go on exactly where the client's stream is now."""
        spoken = self._spoken
        return spoken is not None and not self.ended and spoken.certain(greedy=greedy)

    def rewind(self) -> list[int]:
        """The ids for the engine that goes on; :meth:`resume` says how it was sent. Only if `resumable`."""
        assert self._spoken is not None
        return self._spoken.rewind()

    def resume(self, leg: DecodeLeg) -> None:
        assert isinstance(self._merger, StreamMerger)
        self.leg = leg
        self.ended = False
        self._pattern, self._lessons = None, 0
        self._verified = leg.verify is None
        self._merger.resume(leg)

    @property
    def _spoken(self) -> Spoken | None:
        if not isinstance(self._merger, StreamMerger):
            return None
        self._merger.catch_up()
        return self._merger.spoken

    def _learn(self, data: str, payload: Json, chunks: list[Json]) -> None:
        choices: list[Json] = payload.get("choices") or []
        if self._collector is not None or len(choices) != 1 or len(chunks) != 1 or not self._merger.steady:
            return
        choice = choices[0]
        field = _TEXT[self.leg.endpoint]
        text = choice.get("text") if field == "text" else (choice.get("delta") or {}).get("content")
        if not isinstance(text, str) or not text:
            return
        self._lessons += 1
        event = frame(chunks[0]).decode()
        self._pattern = Pattern.learn(data, field, event, _TEXT[self._request.endpoint], text, choice.get("token_ids") or [])

    def _verify(self, payload: Json) -> bool:
        if self._verified:
            return False
        if payload.get("prompt_token_ids") != self.leg.verify:
            raise OtherIds
        self._verified = True
        return True

    def _take(self, chunks: list[Json], *, begin: bool) -> list[Json] | None:
        if not self._opened:
            self._held += chunks
            if not begin:
                return None
            self._opened = True
            chunks, self._held = self._held, []
        if self._collector is None:
            return chunks
        for chunk in chunks:
            self._collector.add(chunk)
        return None


def _wrong(payload: Json) -> str | None:
    """What makes this payload the end of an answer that is not whole."""
    error = error_in(payload)
    if error is not None:
        return f"the engine reported an error: {error.get('message')}"
    choices = payload.get("choices") or []
    if not isinstance(choices, list):
        return "choices is not a list"
    for choice in choices:
        if not isinstance(choice, dict) or not all(isinstance(choice.get(part) or {}, dict) for part in ("delta", "message")):
            return "a choice is not an object"
        if choice.get("finish_reason") in DEAD_ENDS:
            return f"finish_reason {choice['finish_reason']}"
    return None


def _told(payload: Json) -> tuple[bool, bool]:
    """Whether a chunk carries anything of the answer, and whether it ends it."""
    told = ended = False
    for choice in payload.get("choices") or ():
        delta: dict[str, Any] = choice.get("delta") or {}
        ended = ended or choice.get("finish_reason") is not None
        spoken = choice.get("text") or choice.get("token_ids")
        told = told or ended or bool(spoken) or any(value for name, value in delta.items() if name != "role")
    return told, ended
