"""Two answers become one: P's first token and D's rest, in the client's shape, chunk by chunk.

Everything here is about the one choice that a split request has.
"""

from __future__ import annotations

from typing import Final

from pegaflow.services.router.decode import DecodeLeg
from pegaflow.services.router.fields import is_set
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json, merged_usage
from pegaflow.services.router.pattern import Said
from pegaflow.services.router.prefill import PrefillAnswer
from pegaflow.services.router.seam import StopScanner
from pegaflow.services.router.shapes import INTERNAL, fingerprint, identity, logprobs_length, shifted, streamed, without_first
from pegaflow.services.router.spoken import Diverged, Spoken

UNHEARD: Final = 4096
"""Tokens of a stream that may wait to be taken apart: they take some hundred bytes each until then."""


class StreamMerger:
    """Turns D's chunks into the client's: one id, one `created`, t1 first, D's finish reason.

    `stopped` is true once the router found a stop string itself: D is to be cancelled, :meth:`close` ends the answer.
    """

    def __init__(self, request: ClientRequest, answer: PrefillAnswer, leg: DecodeLeg) -> None:
        self._request = request
        self._answer = answer
        self._leg = leg
        self._chat = request.endpoint is Endpoint.CHAT
        self._offset = logprobs_length(answer.choice.get("logprobs")) if leg.forwarded else 0
        self._spoken_before = 0  # characters that engines before this one said
        self._tokens = 0
        self._unheard: list[Said] = []
        self._scanner: StopScanner | None = None
        if leg.own_stops:
            self._scanner = StopScanner(request.stops, keep_stop=request.keep_stop, min_tokens=request.min_tokens)
        self.spoken: Spoken | None = None
        if leg.resumable:
            self.spoken = Spoken(ids_shown=request.want_token_ids or is_set(request.body, "logprobs"))
        self._usage_sent = False
        self.stopped = False

    def resume(self, leg: DecodeLeg) -> None:
        """Another engine goes on; `spoken` was rewound."""
        assert self.spoken is not None
        self._leg = leg
        self._spoken_before = self.spoken.characters

    def open(self) -> list[Json]:
        """What comes before D's first chunk: the role (chat) and the first token."""
        chunks = _opening(self._request, self._answer)
        if self._leg.forwarded:
            text = self._answer.text
            if self._scanner is not None:
                text = self._scanner.feed(text, 1).text
            chunks.append(_first_token(self._request, self._answer, text, finished=False, first=not chunks))
        return chunks

    def add(self, payload: Json) -> list[Json]:
        """The client's chunks for one of D's; empty where D's carries nothing for the client."""
        choices = payload.get("choices")
        usage = payload.get("usage")
        if not choices:
            if usage and self._request.include_usage:
                self._usage_sent = True
                said = {name: payload[name] for name in ("system_fingerprint",) if name in payload}
                return [self._usage_chunk(merged_usage(self._answer.usage, usage, self._leg.before)) | said]
            return []
        choice = self._choice(choices[0])
        if choice is None:
            return []
        chunk = {name: value for name, value in payload.items() if name not in INTERNAL}
        for name in ("prompt_token_ids", "prompt_text", "usage"):
            chunk.pop(name, None)
        chunk |= identity(self._request, self._answer)
        chunk["choices"] = [choice]
        if usage and self._request.usage_in_every_chunk:
            chunk["usage"] = streamed(merged_usage(self._answer.usage, usage, self._leg.before))
        if self.stopped and not self._request.include_usage:
            chunk |= fingerprint(self._answer)  # D's last chunk, which names it, will not come
        return [chunk]

    @property
    def steady(self) -> bool:
        """Whether the next token's chunk becomes what the last one's became, but for text and ids."""
        return self._scanner is None and (self.spoken is None or self.spoken.level)

    def said(self, said: Said) -> None:
        """A chunk like the last one, that needs no :meth:`add`; only while `steady`."""
        self._unheard.append(said)
        if len(self._unheard) > UNHEARD:
            self.catch_up()

    def catch_up(self) -> None:
        """PERF: what was said is only taken apart when somebody asks for it, which at a stream's clean end nobody does."""
        for said in self._unheard:
            ids = said.ids
            self._tokens += len(ids) or 1
            if self.spoken is not None:
                self.spoken.hear(ids, said.plain)
        self._unheard.clear()

    def close(self) -> list[Json]:
        """The usage that the client asked for, if D did not send it, or was not left to."""
        if not self._request.include_usage or self._usage_sent:
            return []
        return [self._usage_chunk(self.counted_usage()) | fingerprint(self._answer)]

    def counted_usage(self) -> Json:
        """Usage by the router's own count of D's tokens."""
        self.catch_up()
        return merged_usage(self._answer.usage, {"completion_tokens": self._tokens}, self._leg.forwarded)

    def _choice(self, choice: Json) -> Json | None:
        delta = choice.get("delta") or {}
        text = choice.get("text") if self._leg.endpoint is Endpoint.COMPLETIONS else delta.get("content")
        finish = choice.get("finish_reason")
        ids = choice.get("token_ids") or []
        if self._leg.endpoint is Endpoint.CHAT and "role" in delta and not text and finish is None and not ids:
            return None  # D's opening; the client has had its own
        passed, offset = 0, self._offset + self._spoken_before
        if self.spoken is not None and (finish is None or not self.spoken.level):
            self.catch_up()
            if any(value for name, value in delta.items() if name not in ("role", "content")):
                self.spoken.lose()
            whole, (ids, text, passed) = text or "", self.spoken.hear(ids, text or "")
            if finish is not None and self.spoken.behind:
                raise Diverged
            if finish is None and not ids and not text and (whole or passed):
                return None  # the client has had all of it
            choice = without_first(choice, self._chat, passed)
        elif self.spoken is not None:
            text = text or ""  # nobody goes on behind an end, so it need not be heard
        tokens = len(ids) if ids else int(bool(text))
        self._tokens += tokens
        stop_reason = choice.get("stop_reason")
        if self._scanner is not None:
            text, stop = self._scanner.feed(text or "", tokens)
            if stop is not None:
                self.stopped = True
                finish, stop_reason = "stop", stop
            elif finish is not None:
                text += self._scanner.finish()
        if self._leg.reshape:
            made: Json = {"index": 0, "delta": {"content": text or ""}, "logprobs": None, "finish_reason": finish}
            if finish is not None:
                made["stop_reason"] = stop_reason
            made["token_ids"] = ids if self._request.want_token_ids else None
            return made
        made = dict(choice)
        if "prompt_token_ids" in made:
            made["prompt_token_ids"] = None  # of D's prompt; the client has had its own
        if not self._request.want_token_ids:
            made |= {name: None for name in ("token_ids",) if name in made}
        elif self.spoken is not None:
            made["token_ids"] = ids
        if finish is not None:
            made |= {"finish_reason": finish, "stop_reason": stop_reason}
        if self._chat:
            made["delta"] = {name: value for name, value in delta.items() if name != "role"}
            if self._scanner is not None or (self.spoken is not None and text != (delta.get("content") or "")):
                made["delta"]["content"] = text
        else:
            made["text"] = text
            made["logprobs"] = shifted(choice.get("logprobs"), offset)
        return made

    def _usage_chunk(self, usage: Json) -> Json:
        return {**identity(self._request, self._answer), "choices": [], "usage": streamed(usage)}


class Passthrough:
    """D's chunks as they are, but for what belongs to engines; with P's answer, its prompt side of the usage."""

    stopped: Final = False
    steady: Final = True

    def __init__(self, request: ClientRequest, answer: PrefillAnswer | None) -> None:
        self._request = request
        self._answer = answer

    def open(self) -> list[Json]:
        return []

    def said(self, said: Said) -> None:
        """Nothing is kept of it."""

    def add(self, payload: Json) -> list[Json]:
        for name in INTERNAL:
            payload.pop(name, None)
        usage = payload.get("usage")
        if usage and self._answer is not None:
            if not self._request.include_usage:
                if not payload.get("choices"):
                    return []
                del payload["usage"]
            else:
                payload["usage"] = streamed(merged_usage(self._answer.usage, usage, 0))
        return [payload]

    def close(self) -> list[Json]:
        return []


def prefill_chunks(request: ClientRequest, answer: PrefillAnswer) -> list[Json]:
    """P's answer as the whole stream, where its one token is all there is."""
    chunks = _opening(request, answer)
    chunks.append(_first_token(request, answer, answer.text, finished=True, first=not chunks))
    if request.include_usage:
        chunks.append({**identity(request, answer), "choices": [], "usage": streamed(answer.usage)})
    chunks[-1] |= fingerprint(answer)
    return chunks


def _opening(request: ClientRequest, answer: PrefillAnswer) -> list[Json]:
    if request.endpoint is not Endpoint.CHAT:
        return []
    role = answer.choice["message"].get("role") or "assistant"
    choice = {"index": 0, "delta": {"role": role, "content": ""}, "logprobs": None, "finish_reason": None}
    chunk: Json = {**identity(request, answer), "choices": [choice]}
    chunk["prompt_token_ids"] = answer.prompt_ids if request.want_token_ids else None
    if "prompt_text" in answer.payload:
        chunk["prompt_text"] = answer.payload["prompt_text"]
    if request.usage_in_every_chunk:
        chunk["usage"] = streamed(merged_usage(answer.usage, {}, 0))
    return [chunk]


def _first_token(request: ClientRequest, answer: PrefillAnswer, text: str, *, finished: bool, first: bool) -> Json:
    theirs = answer.choice
    choice: Json = {"index": 0}
    if request.endpoint is Endpoint.CHAT:
        message = theirs["message"]
        extras = {name: message[name] for name in ("reasoning", "reasoning_content", "tool_calls") if message.get(name)}
        choice["delta"] = {"content": text, **extras}
    else:
        choice["text"] = text
    choice |= {"logprobs": theirs.get("logprobs"), "finish_reason": theirs.get("finish_reason") if finished else None}
    if finished or request.endpoint is Endpoint.COMPLETIONS:
        choice["stop_reason"] = theirs.get("stop_reason") if finished else None
    choice["token_ids"] = theirs.get("token_ids") if request.want_token_ids else None
    if request.endpoint is Endpoint.COMPLETIONS:
        choice["prompt_token_ids"] = answer.prompt_ids if request.want_token_ids and first else None
    chunk: Json = {**identity(request, answer), "choices": [choice]}
    if request.usage_in_every_chunk:
        chunk["usage"] = streamed(merged_usage(answer.usage, {}, 1))
    return chunk
