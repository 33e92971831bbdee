"""Two answers become one: P's first token and D's rest, in the client's shape, chunk by chunk.

Everything here is about the one choice that a split request has.
"""

from __future__ import annotations

from typing import Any, Final

from pegaflow.services.router.decode import DecodeLeg
from pegaflow.services.router.fields import is_set
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json, merged_usage
from pegaflow.services.router.pattern import Said
from pegaflow.services.router.prefill import Malformed, PrefillAnswer
from pegaflow.services.router.seam import StopScanner
from pegaflow.services.router.spoken import Diverged, Spoken

_INTERNAL: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})
_IDS: Final = frozenset({"token_ids", "prompt_token_ids"})
_OBJECTS: Final = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
_CHUNK_OBJECTS: Final = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}
_COMPLETION_LOGPROBS: Final = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


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
        self._offset = _logprobs_length(answer.choice.get("logprobs")) if leg.forwarded else 0
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
        chunk = {name: value for name, value in payload.items() if name not in _INTERNAL}
        for name in ("prompt_token_ids", "prompt_text", "usage"):
            chunk.pop(name, None)
        chunk |= _identity(self._request, self._answer)
        chunk["choices"] = [choice]
        if usage and self._request.usage_in_every_chunk:
            chunk["usage"] = _streamed(merged_usage(self._answer.usage, usage, self._leg.before))
        if self.stopped and not self._request.include_usage:
            chunk |= _fingerprint(self._answer)  # D's last chunk, which names it, will not come
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
        return [self._usage_chunk(self.counted_usage()) | _fingerprint(self._answer)]

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
            choice = _cut(choice, self._chat, passed)
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
            made["logprobs"] = _shifted(choice.get("logprobs"), offset)
        return made

    def _usage_chunk(self, usage: Json) -> Json:
        return {**_identity(self._request, self._answer), "choices": [], "usage": _streamed(usage)}


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
        for name in _INTERNAL:
            payload.pop(name, None)
        usage = payload.get("usage")
        if usage and self._answer is not None:
            if not self._request.include_usage:
                if not payload.get("choices"):
                    return []
                del payload["usage"]
            else:
                payload["usage"] = _streamed(merged_usage(self._answer.usage, usage, 0))
        return [payload]

    def close(self) -> list[Json]:
        return []


class Collector:
    """Gathers a client's chunks into the answer of a client that does not stream, in the shape of P's."""

    def __init__(self, request: ClientRequest, answer: PrefillAnswer) -> None:
        self._request, self._answer = request, answer
        self._head: Json = {}
        self._text: list[str] = []
        self._role = "assistant"
        self._logprobs: Json | None = None
        self._ids: list[int] = []
        self._finish: Json = {"finish_reason": None, "stop_reason": None}
        self._prompt_ids: list[int] | None = None
        self._usage: Json | None = None

    def add(self, chunk: Json) -> None:
        self._head |= {name: value for name, value in chunk.items() if name not in ("choices", "usage", "prompt_token_ids")}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            self._role = delta.get("role") or self._role
            self._text.append(choice.get("text") or delta.get("content") or "")
            self._ids += choice.get("token_ids") or []
            self._prompt_ids = choice.get("prompt_token_ids") or self._prompt_ids
            self._logprobs = joined_logprobs(self._request.endpoint, self._logprobs, choice.get("logprobs"))
            if choice.get("finish_reason") is not None:
                self._finish = {name: choice.get(name) for name in ("finish_reason", "stop_reason")}

    def answer(self, usage: Json) -> Json:
        """`usage`: what to say where no chunk carried any."""
        text = "".join(self._text)
        whole, choice = _shape(self._request, self._answer)
        if self._request.endpoint is Endpoint.CHAT:
            choice["message"] |= {"role": self._role, "content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": self._logprobs, **self._finish}
        if self._request.want_token_ids:
            choice["token_ids"] = self._ids
        return {
            **whole,
            **self._head,
            "object": _OBJECTS[self._request.endpoint],
            "choices": [choice],
            "usage": {**whole.get("usage", {}), **(self._usage or usage)},
        }


def merge_answers(request: ClientRequest, answer: PrefillAnswer, leg: DecodeLeg, payload: Any) -> Json:
    """P's and D's answers of a request that does not stream, as one. Raises Malformed when D's is none."""
    try:
        theirs = payload["choices"][0]
        text = theirs["text"] if leg.endpoint is Endpoint.COMPLETIONS else theirs["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Malformed(f"no choice in D's answer: {error!r}") from None
    first = answer.text if leg.forwarded else ""
    whole = first + (text or "")
    merged, choice = _shape(request, answer)
    if not leg.reshape:
        merged = {name: None if name in _INTERNAL else value for name, value in payload.items()}
        choice = dict(theirs)
    elif "system_fingerprint" in payload:
        merged["system_fingerprint"] = payload["system_fingerprint"]
    choice["index"] = 0
    if request.endpoint is Endpoint.CHAT:
        message = dict(choice["message"])
        message["role"] = answer.choice["message"].get("role") or "assistant"
        message["content"] = whole
        choice["message"] = message
        choice.setdefault("logprobs", None)
    else:
        choice["text"] = whole
    if leg.forwarded and not leg.reshape:
        choice["logprobs"] = joined_logprobs(request.endpoint, answer.choice.get("logprobs"), theirs.get("logprobs"))
    choice["finish_reason"] = theirs.get("finish_reason")
    choice["stop_reason"] = theirs.get("stop_reason")
    merged |= _identity(request, answer)
    merged["object"] = _OBJECTS[request.endpoint]
    ids = [*([answer.token] if leg.forwarded else []), *(theirs.get("token_ids") or [])]
    choice["token_ids"] = ids if request.want_token_ids else None
    place = merged if request.endpoint is Endpoint.CHAT else choice
    place["prompt_token_ids"] = answer.prompt_ids if request.want_token_ids else None
    if "prompt_text" in answer.payload:
        merged["prompt_text"] = answer.payload["prompt_text"]
    merged["choices"] = [choice]
    merged["usage"] = merged_usage(answer.usage, payload.get("usage") or {}, leg.forwarded)
    return merged


def _shape(request: ClientRequest, answer: PrefillAnswer) -> tuple[Json, Json]:
    """P's answer, which has the shape that the client expects, to be filled with the whole one: the answer, its choice."""
    whole = stripped_answer(request, answer.payload)
    choice = dict(whole["choices"][0])
    if request.endpoint is Endpoint.CHAT:
        choice["message"] = dict(choice["message"])
    return whole, choice


def _streamed(usage: Json) -> Json:
    """Usage as streams have it: without what is not known."""
    return {name: value for name, value in usage.items() if value is not None}


def stripped_answer(request: ClientRequest, payload: Json, answer: PrefillAnswer | None = None) -> Json:
    """One engine's answer without what belongs to engines; with P's answer, its prompt side of the usage."""
    hidden = _INTERNAL if request.want_token_ids else _INTERNAL | _IDS
    shown = {name: None if name in hidden else value for name, value in payload.items()}
    if not request.want_token_ids:
        shown["choices"] = [
            {name: None if name in _IDS else value for name, value in choice.items()} for choice in payload.get("choices") or []
        ]
    usage = payload.get("usage")
    if answer is not None and isinstance(usage, dict):
        shown["usage"] = merged_usage(answer.usage, usage, 0)
    return shown


def prefill_chunks(request: ClientRequest, answer: PrefillAnswer) -> list[Json]:
    """P's answer as the whole stream, where its one token is all there is."""
    chunks = _opening(request, answer)
    chunks.append(_first_token(request, answer, answer.text, finished=True, first=not chunks))
    if request.include_usage:
        chunks.append({**_identity(request, answer), "choices": [], "usage": _streamed(answer.usage)})
    chunks[-1] |= _fingerprint(answer)
    return chunks


def joined_logprobs(endpoint: Endpoint, first: Json | None, rest: Json | None) -> Json | None:
    """Logprobs of two parts of one answer; offsets of the second part are moved behind the first."""
    if not first or not rest:
        return first or rest
    if endpoint is Endpoint.CHAT:
        return {**rest, "content": [*(first.get("content") or []), *(rest.get("content") or [])]}
    moved = rest
    if rest.get("text_offset") and rest["text_offset"][0] == 0:
        moved = _shifted(rest, _logprobs_length(first)) or rest
    return {**rest, **{name: [*(first.get(name) or []), *(moved.get(name) or [])] for name in _COMPLETION_LOGPROBS}}


def _opening(request: ClientRequest, answer: PrefillAnswer) -> list[Json]:
    if request.endpoint is not Endpoint.CHAT:
        return []
    role = answer.choice["message"].get("role") or "assistant"
    choice = {"index": 0, "delta": {"role": role, "content": ""}, "logprobs": None, "finish_reason": None}
    chunk: Json = {**_identity(request, answer), "choices": [choice]}
    chunk["prompt_token_ids"] = answer.prompt_ids if request.want_token_ids else None
    if "prompt_text" in answer.payload:
        chunk["prompt_text"] = answer.payload["prompt_text"]
    if request.usage_in_every_chunk:
        chunk["usage"] = _streamed(merged_usage(answer.usage, {}, 0))
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
    chunk: Json = {**_identity(request, answer), "choices": [choice]}
    if request.usage_in_every_chunk:
        chunk["usage"] = _streamed(merged_usage(answer.usage, {}, 1))
    return chunk


def _identity(request: ClientRequest, answer: PrefillAnswer) -> Json:
    return {
        "id": answer.payload.get("id"),
        "object": _CHUNK_OBJECTS[request.endpoint],
        "created": answer.payload.get("created"),
        "model": answer.payload.get("model"),
    }


def _fingerprint(answer: PrefillAnswer) -> Json:
    """Of the engine that answered; the last chunk of a stream says it."""
    return {name: answer.payload[name] for name in ("system_fingerprint",) if name in answer.payload}


def _cut(choice: Json, chat: bool, tokens: int) -> Json:
    """The choice of a chunk without the logprobs of its first tokens."""
    logprobs = choice.get("logprobs")
    if not tokens or not logprobs:
        return choice
    lists = ("content",) if chat else _COMPLETION_LOGPROBS
    return {**choice, "logprobs": {**logprobs, **{name: logprobs[name][tokens:] for name in lists if logprobs.get(name)}}}


def _logprobs_length(logprobs: Any) -> int:
    """Characters of the tokens in completions' logprobs, as vLLM counts offsets."""
    if not isinstance(logprobs, dict) or not logprobs.get("tokens"):
        return 0
    offsets = logprobs.get("text_offset") or [0]
    return int(offsets[-1]) + len(logprobs["tokens"][-1])


def _shifted(logprobs: Json | None, by: int) -> Json | None:
    if not logprobs or not by:
        return logprobs
    return {**logprobs, "text_offset": [offset + by for offset in logprobs.get("text_offset") or []]}
