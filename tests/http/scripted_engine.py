"""A stand-in for vLLM on a real socket: tiny, deterministic, and disturbed on demand.

It follows vLLM 0.32 where the router looks: which ids come where, how chunks are cut, how stop strings, `min_tokens`
and limits work. Its "model" knows one reply; the prompt's last ids say how much of it has been spoken, so that a
decode engine continues exactly where the forwarded token ends.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
Handler = Callable[["Call"], Awaitable[web.StreamResponse]]

EOS = 2
REPLY = ((1001, "Hel"), (1002, "lo"), (1003, " wör"), (1004, "ld"), (1005, "!"), (EOS, ""))


@dataclass(slots=True)
class Call:
    """One request as the engine got it."""

    request: web.Request
    path: str
    body: Json
    peer: tuple[str, int]
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")


class ScriptedEngine:
    """`disturb(handler)` queues handlers for the next generation requests; without one it answers like vLLM."""

    def __init__(self, reply: tuple[tuple[int, str], ...] = REPLY, *, chat_ids: bool = True, model_length: int = 256) -> None:
        self.reply = reply
        self.chat_ids = chat_ids
        self.model_length = model_length
        self.cached_tokens = 0
        self.calls: list[Call] = []
        self.arrived = asyncio.Condition()
        self.healthy = True
        self.health_hangs = False
        self.url = ""
        self._disturbances: deque[Handler] = deque()

    def disturb(self, *handlers: Handler) -> None:
        self._disturbances.extend(handlers)

    def undisturb(self) -> None:
        """Forgets the handlers that have not had their turn."""
        self._disturbances.clear()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[ScriptedEngine]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        # A handler is cancelled when its client goes away: that is what the disconnect tests look at.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._runner = runner
        try:
            yield self
        finally:
            await runner.cleanup()

    async def stop(self) -> None:
        """Stops listening before its time."""
        await self._runner.cleanup()

    async def calls_to_come(self, count: int) -> list[Call]:
        """Returns when `count` generation requests have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.calls) >= count)
        return self.calls

    async def _health(self, request: web.Request) -> web.Response:
        if self.health_hangs:
            await asyncio.Event().wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "tiny", "object": "model", "max_model_len": self.model_length}
        return web.json_response({"object": "list", "data": [model]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        call = Call(request, request.path, await request.json(), request.transport.get_extra_info("peername"))
        async with self.arrived:
            self.calls.append(call)
            self.arrived.notify_all()
        handler = self._disturbances.popleft() if self._disturbances else self.answer
        try:
            return await handler(call)
        except asyncio.CancelledError:
            call.gone.set()
            raise

    async def answer(self, call: Call) -> web.StreamResponse:
        """What vLLM would say."""
        try:
            generation = Generation(self, call)
        except ValueError as error:
            return error_response(400, str(error))
        return await respond(call, generation)


class Generation:
    """One answer: ids and texts, then in either shape."""

    def __init__(self, engine: ScriptedEngine, call: Call) -> None:
        body, self.chat = call.body, call.chat
        self.engine = engine
        self.body = body
        kv = body.get("kv_transfer_params") or {}
        forwarded = kv.get("prompt_token_ids")
        if self.chat and forwarded and engine.chat_ids and not body.get("echo"):
            self.prompt: list[int] = forwarded
        elif self.chat:
            self.prompt = text_ids("".join(f"<{m['role']}>{m['content']}" for m in body["messages"]))
        else:
            prompt = body["prompt"]
            self.prompt = text_ids(prompt) if isinstance(prompt, str) else prompt
            if isinstance(body.get("truncate_prompt_tokens"), int):
                self.prompt = self.prompt[-body["truncate_prompt_tokens"] :]
        limit = body.get("max_completion_tokens") if self.chat else None
        limit = body.get("max_tokens") if limit is None else limit
        if limit is None:
            limit = engine.model_length if self.chat else 16
        echo_only = not self.chat and body.get("echo") and limit == 0
        if limit < 1 and not echo_only:
            raise ValueError("max_tokens must be at least 1")
        if body.get("min_tokens", 0) > limit:
            raise ValueError("min_tokens must not exceed max_tokens")
        limit = min(limit, engine.model_length - len(self.prompt))
        if limit < 1 and not echo_only:
            raise ValueError("the prompt is too long")
        self.tokens: list[tuple[int, str]] = []
        self.shown: list[tuple[int, str]] | None = None  # with the text that a stop string left
        self.finish = "length"
        self.stop_reason: int | str | None = None
        self._speak(limit)

    def _speak(self, limit: int) -> None:
        body = self.body
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        least, keep = body.get("min_tokens", 0), body.get("include_stop_str_in_output", False)
        replies = [token for token, _ in self.engine.reply]
        spoken = next(
            (n for n in range(len(replies), 0, -1) if self.prompt[-n:] == replies[:n]),
            0,
        )
        text = ""
        for token, piece in self.engine.reply[spoken:]:
            if len(self.tokens) >= limit:
                return
            if token == EOS or token in (body.get("stop_token_ids") or []):
                self.tokens.append((token, ""))
                self.finish = "stop"
                self.stop_reason = None if token == EOS else token
                return
            self.tokens.append((token, piece))
            text += piece
            if len(self.tokens) <= least:
                continue
            before = len(text) - len(piece)
            found = [(text.find(s, max(0, before - len(s) + 1)) + len(s), s) for s in stops]
            found = [(end, s) for end, s in found if end >= len(s)]
            if found:
                end, stop = min(found, key=lambda one: one[0])
                self._cut(end if keep else end - len(stop))
                self.finish, self.stop_reason = "stop", stop
                return

    def _cut(self, end: int) -> None:
        kept = []
        for token, piece in self.tokens:
            kept.append((token, piece[:end]))
            end -= len(piece[:end])
        self.shown = kept

    def usage(self, completion: int) -> Json:
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": completion,
            "total_tokens": len(self.prompt) + completion,
            "prompt_tokens_details": {"cached_tokens": self.engine.cached_tokens},
        }

    def logprobs(self, tokens: list[tuple[int, str]], offset: int) -> Json | None:
        if self.chat:
            if not self.body.get("logprobs"):
                return None
            return {"content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []} for _, text in tokens]}
        if self.body.get("logprobs") is None:
            return None
        offsets = []
        for _, text in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [-0.5] * len(tokens),
            "tokens": [text for _, text in tokens],
            "top_logprobs": [{text: -0.5} for _, text in tokens],
        }

    def whole(self) -> Json:
        text = "".join(piece for _, piece in self.shown or self.tokens)
        ids = bool(self.body.get("return_token_ids"))
        choice: Json = {"index": 0, "logprobs": self.logprobs(self.tokens, 0)}
        choice |= {"finish_reason": self.finish, "stop_reason": self.stop_reason}
        choice["token_ids"] = [token for token, _ in self.tokens] if ids else None
        shown: Json = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "tiny", "choices": [choice]}
        if self.chat:
            shown |= {"id": "chatcmpl-1", "object": "chat.completion", "prompt_token_ids": self.prompt if ids else None}
            choice["message"] = {"role": "assistant", "content": text, "reasoning": None}
        else:
            if self.body.get("echo") and not ids:
                text = (self.body["prompt"] if isinstance(self.body["prompt"], str) else "?") + text
            choice |= {"text": text, "prompt_token_ids": self.prompt if ids else None}
        return shown | {"usage": self.usage(len(self.tokens)), "kv_transfer_params": {"secret": 1}}

    def chunks(self) -> list[Json]:
        ids = bool(self.body.get("return_token_ids"))
        options = self.body.get("stream_options") or {}
        usage, always = options.get("include_usage"), options.get("continuous_usage_stats")
        head: Json = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "tiny"}
        made: list[Json] = []
        if self.chat:
            head |= {"id": "chatcmpl-1", "object": "chat.completion.chunk"}
            choice: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            made.append({**head, "choices": [choice], "prompt_token_ids": self.prompt if ids else None})
            if always:
                made[0]["usage"] = self.usage(0)
        offset = 0
        for number, (token, spoken) in enumerate(self.tokens):
            piece = self.shown[number][1] if self.shown else spoken
            last = number == len(self.tokens) - 1
            # In vLLM's order: the router reads what is alike by its place.
            choice = {"index": 0} | ({"delta": {"content": piece}} if self.chat else {"text": piece})
            choice["logprobs"] = self.logprobs([(token, spoken)], offset)
            offset += len(spoken)
            choice["finish_reason"] = self.finish if last else None
            choice["token_ids"] = [token] if ids else None
            if self.chat:
                choice["delta"] = {"content": piece}
                if last:
                    choice["stop_reason"] = self.stop_reason
            else:
                choice |= {"text": piece, "stop_reason": self.stop_reason if last else None}
                choice["prompt_token_ids"] = self.prompt if ids and number == 0 else None
            made.append({**head, "choices": [choice]})
            if always:
                made[-1]["usage"] = self.usage(number + 1)
        if usage:
            made.append({**head, "choices": [], "usage": self.usage(len(self.tokens))})
        return made


def text_ids(text: str) -> list[int]:
    return [100 + byte for byte in text.encode()]


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    return web.json_response(body, status=status, headers=headers)


async def start_stream(call: Call) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(call.request)
    return response


async def respond(call: Call, generation: Generation) -> web.StreamResponse:
    """The whole answer, streamed if the call says so."""
    if not call.body.get("stream"):
        return web.json_response(generation.whole())
    response = await start_stream(call)
    for chunk in generation.chunks():
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


# Disturbances


def pauses(go_on: asyncio.Event) -> Any:
    """Says "lo", and the rest ("!") when it is told to."""

    async def slowly(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        await response.write(b'data: {"id": "a", "choices": [{"index": 0, "text": "lo", "finish_reason": null}]}\n\n')
        await go_on.wait()
        await response.write(b'data: {"id": "a", "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}]}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    return slowly


def answers(status: int, headers: dict[str, str] | None = None) -> Handler:
    async def handler(call: Call) -> web.StreamResponse:
        return error_response(status, f"scripted {status}", headers)

    return handler


async def hangs(call: Call) -> web.StreamResponse:
    """Never answers; ends when its client goes away."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def hangs_up(call: Call) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert call.request.transport is not None
    call.request.transport.close()
    return web.Response()


def streams(engine: ScriptedEngine, *, chunks: int, then: Handler | bytes) -> Handler:
    """Sends the first `chunks` chunks of a good stream, then the given bytes and the end, or the handler."""

    async def handler(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        for chunk in Generation(engine, call).chunks()[:chunks]:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if isinstance(then, bytes):
            await response.write(then)
            return response
        return await then(call)

    return handler


def rewritten(engine: ScriptedEngine, rewrite: Callable[[bytes], list[bytes]]) -> Handler:
    """A good stream whose bytes are cut and altered by `rewrite`, each part sent by itself."""

    async def handler(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        whole = b"".join(
            b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in Generation(engine, call).chunks()
        )
        for part in rewrite(whole + b"data: [DONE]\n\n"):
            await response.write(part)
            await asyncio.sleep(0)
        return response

    return handler
