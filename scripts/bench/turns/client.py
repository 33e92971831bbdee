"""The clients: all conversations in one asyncio loop, answers streamed, each event stamped when its bytes are read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import aiohttp
from pegaflow.services.router.sse import StreamBroken

from .heard import Heard, Reading  # so that tests, to which this is another package, find it too
from .shape import Shape

ANSWER_SECONDS = 300.0


class Talk(Protocol):
    """What users say; :class:`turns.workload.Workload` is one."""

    @property
    def shape(self) -> Shape: ...

    def piece(self, session: int, turn: int) -> list[int]: ...


class Client:
    """An async context manager. Each request has its own connection. `urls`: a session always asks the same one."""

    def __init__(self, urls: Sequence[str], model_name: str, answer: int) -> None:
        self._urls, self._model, self._answer = urls, model_name, answer

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.close()

    async def ask(self, session: int, turn: int, prompt: Sequence[int], late: float = 0.0) -> Heard:
        """Never raises for what a server does; `error` says it."""
        body = {"model": self._model, "prompt": list(prompt), "max_tokens": self._answer, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
        data = json.dumps(body).encode()
        url = self._urls[session % len(self._urls)] + "/v1/completions"
        reading, plan = Reading(), ""
        sent = time.monotonic()
        try:
            async with self._http.post(url, data=data, headers={"Content-Type": "application/json"}) as response:
                plan = response.headers.get("x-pegaflow-plan", "")
                if response.status != 200:
                    reading.error = f"{response.status}: {(await response.text())[:300]}"
                else:
                    while chunk := await response.content.readany():
                        reading.feed(chunk, time.monotonic())
                    if not reading.done and not reading.error:
                        reading.error = "the stream ended without [DONE]"
        except (aiohttp.ClientError, TimeoutError, OSError, StreamBroken, ValueError, LookupError) as error:
            reading.error = f"{type(error).__name__}: {error}"
        ended = time.monotonic()
        return Heard(
            session, turn, len(prompt), late, sent, ended, tuple(reading.events), tuple(reading.ids), reading.finish, plan,
            reading.error,
        )  # fmt: skip

    async def converse(self, workload: Talk, times: Sequence[Sequence[float]] | None) -> list[Heard]:
        """All sessions. `times`: when each turn of each session is asked, in seconds from now, or when the answer before it is
        there if that is later; None: at once when it is there. A session ends with its first failure.
        """
        begun = time.monotonic()
        sessions = range(workload.shape.sessions)
        talks = [self._talk(workload, session, times[session] if times else None, begun) for session in sessions]
        return [one for talk in await asyncio.gather(*talks) for one in talk]

    async def _talk(self, workload: Talk, session: int, times: Sequence[float] | None, begun: float) -> list[Heard]:
        said: list[int] = []
        heard: list[Heard] = []
        for turn in range(workload.shape.turns):
            said += workload.piece(session, turn)
            late = 0.0
            if times is not None:
                ahead = begun + times[turn] - time.monotonic()
                await asyncio.sleep(max(0.0, ahead))
                late = max(0.0, -ahead)
            heard.append(await self.ask(session, turn, said, late))
            if heard[-1].wrong(self._answer):
                break
            said += heard[-1].ids
        return heard
