"""One request's shell: carries out a flow's commands and gives the client its bytes.

An exchange runs in the task of its HTTP request, one step after the other, so that a slow client holds back the
engine and a cancelled task holds back nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from pegaflow.common import logs
from pegaflow.services.router.budget import RetryBudget
from pegaflow.services.router.client_headers import REQUEST_ID
from pegaflow.services.router.engines import Engine, Engines, facts
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.locator import Locator
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.openai import DONE, frame, speaks
from pegaflow.services.router.steps import (
    Answer,
    Begin,
    Cancel,
    Command,
    Event,
    Expired,
    Finish,
    Gone,
    Learnt,
    NoEngine,
    Pick,
    Picked,
    Plan,
    Release,
    Resumed,
    Role,
    Send,
    SendChunks,
    SendDone,
    SendError,
    Spent,
    StartStream,
    Verdict,
    Wait,
    Woke,
)
from pegaflow.services.router.upstream import Leg, Upstream

log = logs.get(__name__)

Output = Answer | StartStream | bytes
_AT_ONCE: Final = (SendChunks, SendDone, SendError, Cancel, Release, Learnt, Resumed)


class Exchange:
    """Drives one flow. `head` first; if that is a StartStream, the exchange is then an iterator of bytes.

    `close` must be called at the end, whatever happened, and gives everything back.
    """

    def __init__(
        self,
        flow: Flow,
        upstream: Upstream,
        engines: Engines,
        budget: RetryBudget,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        headers: Mapping[str, str],
        locator: Locator | None = None,
    ) -> None:
        self._flow = flow
        self._upstream = upstream
        self._engines = engines
        self._budget = budget
        self._metrics = metrics
        self._clock = clock
        self._headers = headers
        self._locator = locator
        self._task = asyncio.current_task()
        self._commands: deque[Command] = deque()
        self._engine: Engine | None = None
        self._leg: Leg | None = None
        self._expired = False
        self._finish: Finish | None = None
        self._marks = engines.marks(flow.request)
        self._began = clock()
        self._prefilled: float | None = None
        self._plan = Plan.NONE
        self._spoke: float | None = None
        self._speaks = False  # what is to go out next
        metrics.began()
        budget.earn()

    async def head(self) -> Answer | StartStream:
        """The first thing for the client: a whole answer, after which nothing follows, or the start of a stream."""
        self._push(Begin())
        output = await self._next()
        assert isinstance(output, Answer | StartStream)
        if isinstance(output, Answer):
            assert await self._next() is None
            return output
        now = self._clock()
        self._plan = output.plan
        self._metrics.first_token(output.plan, now - self._began)
        if self._prefilled is not None:
            self._metrics.handoff(now - self._prefilled)
        return output

    def __aiter__(self) -> Exchange:
        return self

    async def __anext__(self) -> bytes:
        output = await self._next()
        if output is None:
            raise StopAsyncIteration
        assert isinstance(output, bytes)
        return output

    def expire(self) -> None:
        """End this exchange now, with an error that says why; from any task."""
        if self._finish is None and self._task is not None:
            self._expired = True
            self._task.cancel()

    async def close(self) -> None:
        """Cancels what is open if the flow is not over: the client is gone. Idempotent."""
        if self._finish is None:
            self._push(Expired() if self._expired else Gone())
            while await self._next() is not None:
                pass  # nobody is left to read it
        await self._close_leg()

    def _push(self, event: Event) -> None:
        self._commands.extend(self._flow.handle(event))

    async def _next(self) -> Output | None:
        """Carry out commands until one has something for the client; None when the flow is over.

        Chunks that are there at once go out together: a write for each costs more than all else that is done with it.
        """
        chunks: list[bytes] = []
        while True:
            if chunks and not self._more_at_once():
                if self._speaks:
                    self._measure()
                return b"".join(chunks)
            try:
                if self._commands:
                    output = await self._carry_out(self._commands.popleft())
                    if isinstance(output, bytes):
                        chunks.append(output)
                    elif output is not None:
                        return output
                    continue
                if self._finish is not None:
                    return None
                assert self._leg is not None, "the flow waits for nothing"
                self._push(await self._leg.next())
            except asyncio.CancelledError:
                if not self._expired or self._task is None or self._finish is not None:
                    raise
                self._task.uncancel()
                self._push(Expired())

    def _more_at_once(self) -> bool:
        """Whether the next command says more to the client or costs no time. `Finish` comes when the client has it all."""
        return bool(self._commands) and isinstance(self._commands[0], _AT_ONCE)

    async def _carry_out(self, command: Command) -> Output | None:
        match command:
            case StartStream() | Answer():
                return command
            case SendChunks(chunks):
                self._speaks = self._speaks or any(isinstance(chunk, str) or speaks(chunk) for chunk in chunks)
                return b"".join([chunk.encode() if isinstance(chunk, str) else frame(chunk) for chunk in chunks])
            case SendDone():
                return DONE
            case SendError(body):
                return frame(body)
            case Pick(role, avoid, ids):
                held = None
                if self._locator is not None and role is Role.DECODE:
                    held = await self._locator.held(self._flow.request, ids)
                self._pick(role, avoid, held)
            case Send():
                await self._close_leg()
                assert self._engine is not None
                prefill = self._engine.role is Role.PREFILL and not command.stream
                self._leg = self._upstream.leg(self._engine.name, command, self._headers, prefill=prefill)
            case Cancel():
                await self._close_leg()
            case Release(_, verdict):
                await self._close_leg()
                self._release(verdict)
            case Learnt(_, chat_ids):
                assert self._engine is not None
                self._engine.chat_ids = chat_ids
            case Resumed():
                self._metrics.resumed()
            case Wait(seconds, resumes):
                if not self._budget.spend():
                    self._metrics.refused_retry()
                    self._push(Spent())
                    return None
                if not resumes:
                    self._metrics.retried()
                await asyncio.sleep(seconds)
                self._push(Woke())
            case Finish():
                self._finish = command
                self._metrics.ended(command)
                identity = self._headers.get(REQUEST_ID)
                log.debug("ended", plan=command.plan, outcome=command.outcome, code=command.code, request_id=identity)
        return None

    def _measure(self) -> None:
        """What goes out now says something."""
        self._speaks = False
        before, self._spoke = self._spoke, self._clock()
        if before is not None:
            self._metrics.inter_token(self._plan, self._spoke - before)

    def _pick(self, role: Role, avoid: frozenset[str], held: Mapping[str, int] | None) -> None:
        self._prefilled = self._clock() if role is Role.DECODE else None
        self._engine = self._engines.pick(role, avoid, self._marks, held)
        if self._engine is None:
            self._push(NoEngine())
            return
        self._metrics.engine(self._engine, self._engines.breaker(self._engine))
        self._push(Picked(facts(self._engine)))

    def _release(self, verdict: Verdict) -> None:
        engine, self._engine = self._engine, None
        assert engine is not None
        self._engines.release(engine, verdict)
        self._metrics.engine(engine, self._engines.breaker(engine))

    async def _close_leg(self) -> None:
        leg, self._leg = self._leg, None
        if leg is not None:
            await leg.close()
