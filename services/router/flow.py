"""The life of one request, as a state machine without sockets or clock.

    new ──▶ pick_prefill ──▶ prefill ──▶ pick_answer ──▶ answer ──▶ done
                 ▲              │             │             │
                 └── backoff ◀──┴─────────────┴─────────────┘   before the client had a byte

A request that one engine answers alone goes from new to pick_answer. The client's first byte waits for D's first
token, so that everything up to there can be repeated: P's part is idempotent (same prompt, same keys). After that
byte nothing is tried again but for one thing: another decode engine may go on from the ids that were said
(answer ──▶ backoff ──▶ pick_answer ──▶ answer). A stream ends with `[DONE]`, or with an error frame and without it.

Every event is legal in every state where the shell can produce it; anything else is an AssertionError. `Finish` is
the last command, exactly once; after it events are ignored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence

from pegaflow.services.router import failures
from pegaflow.services.router.answer import Answering, Broken, OtherIds
from pegaflow.services.router.decode import relay_leg, replay_leg
from pegaflow.services.router.failures import Failure
from pegaflow.services.router.merge import prefill_chunks
from pegaflow.services.router.openai import ClientRequest, Json, Refused, dumps
from pegaflow.services.router.plan import Before, FlowSettings, Mode, begin, choose, is_greedy, prefill_suffices, rest
from pegaflow.services.router.prefill import DEAD_ENDS, Malformed, PrefillAnswer, has_saved, prefill_body, read_prefill
from pegaflow.services.router.steps import (
    Answer,
    Answered,
    Begin,
    Cancel,
    Chunk,
    Command,
    Ended,
    EngineFacts,
    Event,
    Expired,
    Failed,
    Finish,
    Frames,
    Gone,
    Learnt,
    NoEngine,
    Outcome,
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
    State,
    Verdict,
    Wait,
    Woke,
)
from pegaflow.services.router.tries import Tries
from pegaflow.services.router.whole import stripped_answer


class Flow:
    """One request. `handle(event)` returns the commands to carry out, in order."""

    def __init__(self, request: ClientRequest, settings: FlowSettings, draw: Callable[[], float] = lambda: 1.0) -> None:
        self.request, self.settings = request, settings
        self.state = State.NEW
        self.plan = Plan.NONE
        self._tries = Tries(settings.retries, draw)
        self._avoid: frozenset[str] = frozenset()
        self._role = Role.ENGINE  # of the engine that gives the client its answer
        self._engine: EngineFacts | None = None
        self._failure: Failure | None = None
        self._prefill: PrefillAnswer | None = None
        self._prefill_length: int | None = None
        self._streaming = False  # the client has had a byte
        self._saved = True
        self._answer: Answering | None = None

    def handle(self, event: Event) -> list[Command]:
        if self.state is State.DONE:
            return []
        match event:
            case Gone():
                return [*self._abandon(), self._finish(Outcome.GONE, "client_gone")]
            case Expired():
                return self._expire()
            case Begin() if self.state is State.NEW:
                return self._begin()
            case Picked(engine) if self.state is State.PICK_PREFILL:
                return self._send_prefill(engine)
            case Picked(engine) if self.state is State.PICK_ANSWER:
                self._engine = engine
                return self._send_rest() if self._streaming else self._send_answer()
            case NoEngine() if self._streaming and self.state is State.PICK_ANSWER:
                return self._interrupt()
            case NoEngine() if self.state in (State.PICK_PREFILL, State.PICK_ANSWER):
                role = Role.PREFILL if self.state is State.PICK_PREFILL else self._role
                # A last failure says more than "nobody left".
                return self._give_up(self._failure or failures.no_engine(role))
            case Woke() if self.state is State.BACKOFF:
                return self._pick_answer() if self._streaming else self._pick_first()
            case Spent() if self.state is State.BACKOFF:
                assert self._failure is not None
                return self._interrupt() if self._streaming else self._give_up(self._failure)
            case Answered() if self.state is State.PREFILL:
                return self._prefill_answered(event)
            case Failed(kind, text) if self.state is State.PREFILL:
                return self._again(failures.of_kind(Role.PREFILL, kind, text))
            case Answered() if self.state is State.ANSWER:
                return self._answered(event)
            case Frames(data) if self.state is State.ANSWER:
                return self._framed(data)
            case Ended() if self.state is State.ANSWER:
                return self._stream_over(failures.broken(self._role, "the stream ended early"))
            case Failed(kind, text) if self.state is State.ANSWER:
                return self._stream_over(failures.of_kind(self._role, kind, text))
        raise AssertionError(f"{event} in state {self.state}")

    def validate(self) -> None:
        """Raises AssertionError unless the fields fit the state; called by tests after every step."""
        open_leg = self.state in (State.PREFILL, State.ANSWER)
        assert (self._engine is not None) == open_leg, "an engine is held exactly while a leg is open"
        resuming = self._streaming and self.state in (State.BACKOFF, State.PICK_ANSWER)
        assert not self._streaming or resuming or self.state in (State.ANSWER, State.DONE), "nothing is repeated after a byte"
        assert (self._answer is not None) == (resuming or self.state is State.ANSWER), "an answer is kept while it can go on"
        assert not resuming or self.plan in (Plan.SPLICE, Plan.REPLAY), "only a decode engine's answer goes on"
        self._tries.validate()

    # Before the answer

    def _begin(self) -> list[Command]:
        try:
            self._role, self.plan = begin(self.request, self.settings)
        except Refused as refused:
            return self._refuse(refused)
        return self._pick_first()

    def _pick_first(self) -> list[Command]:
        if self._role is Role.DECODE:
            self.state = State.PICK_PREFILL
            return [Pick(Role.PREFILL, self._avoid)]
        return self._pick_answer()

    def _pick_answer(self) -> list[Command]:
        self.state = State.PICK_ANSWER
        ids = self._prefill.prompt_ids if self._prefill is not None else None
        return [Pick(self._role, self._avoid, ids or ())]

    def _send_prefill(self, engine: EngineFacts) -> list[Command]:
        self._engine = engine
        length = self.settings.model_length or engine.model_length
        limit = self.request.limit
        if self.settings.mode is Mode.FIRST_TOKEN and limit is not None and length is not None and limit > length:
            # The engine refuses this, in terms of the client's own number only if it sees that number.
            self.plan, self._role = Plan.PREFILL, Role.PREFILL
            return self._send_answer()
        self.state = State.PREFILL
        self._prefill_length = length
        return [Send(self.request.endpoint, prefill_body(self.request, ids=self.settings.mode is Mode.FIRST_TOKEN), stream=False)]

    def _prefill_answered(self, event: Answered) -> list[Command]:
        failure = failures.of_status(Role.PREFILL, event, own_key=self.settings.own_key)
        if failure is not None:
            return self._again(failure)
        if event.status != 200:
            return self._reject(event)
        if self.settings.mode is Mode.PREFILL_DECODE:
            with contextlib.suppress(ValueError):
                self._saved = has_saved(json.loads(event.body))
            return [*self._release(Verdict.GOOD), *self._pick_answer()]
        try:
            answer = read_prefill(self.request.endpoint, json.loads(event.body))
        except (Malformed, ValueError) as error:
            return self._again(failures.broken(Role.PREFILL, str(error)))
        if answer.finish_reason in DEAD_ENDS:
            return self._again(failures.broken(Role.PREFILL, f"finish_reason {answer.finish_reason}"))
        self._prefill = answer
        released = self._release(Verdict.GOOD)
        if prefill_suffices(self.request, answer, self._prefill_length):
            self.plan = Plan.PREFILL
            return [*released, *self._answer_by_prefill(answer)]
        return [*released, *self._pick_answer()]

    def _answer_by_prefill(self, answer: PrefillAnswer) -> list[Command]:
        if not self.request.stream:
            return [self._whole(stripped_answer(self.request, answer.payload)), self._finish(Outcome.OK, "200")]
        self._streaming = True
        chunks = prefill_chunks(self.request, answer)
        return [StartStream(self.plan), SendChunks(chunks), SendDone(), self._finish(Outcome.OK, "200")]

    # The answer

    def _send_answer(self, *, no_chat_ids: bool = False) -> list[Command]:
        engine = self._engine
        assert engine is not None
        if self.settings.mode is Mode.PREFILL_DECODE:
            self.plan, leg = Plan.REPLAY, replay_leg(self.request, None, way=None, saved=self._saved)
        elif self._prefill is None:
            leg = relay_leg(self.request)
        else:
            try:
                self.plan, leg = choose(self.request, self._prefill, engine, self.settings, no_chat_ids=no_chat_ids)
            except Refused as refused:
                return self._refuse(refused)
        self.state = State.ANSWER
        self._answer = Answering(self.request, self._prefill, leg)
        return [Send(leg.endpoint, leg.body, leg.stream)]

    def _answered(self, event: Answered) -> list[Command]:
        answer = self._answer
        assert answer is not None
        failure = failures.of_status(self._role, event, own_key=self.settings.own_key)
        if failure is not None:
            return self._died(failure, cancel=False)
        verifying = answer.leg.verify is not None
        if event.status != 200:
            # An engine that does not know ids on chat may say so; on completions it cannot misunderstand.
            if verifying:
                return self._other_way([])
            if self._streaming:
                refused = failures.broken(self._role, f"it answered {event.status} when it was to go on")
                return self._died(refused, cancel=False, final=True)
            return self._reject(event)
        try:
            payload = answer.whole(event.body)
        except OtherIds:
            return self._other_way([])
        except Broken as error:
            return self._died(failures.broken(self._role, str(error)), cancel=False)
        learnt = self._learnt(True) if verifying else []
        return [*learnt, *self._release(Verdict.GOOD), self._whole(payload), self._finish(Outcome.OK, "200")]

    def _framed(self, frames: Sequence[str]) -> list[Command]:
        answer = self._answer
        assert answer is not None
        leg = answer.leg
        commands: list[Command] = []
        quick: list[Chunk] = []
        for data in frames:
            event = answer.quick(data)
            if event is not None:
                quick.append(event)
                continue
            if quick:
                commands += self._show(quick)
                quick = []
            commands += self._frame(answer, data)
            if self.state is not State.ANSWER or self._answer is not answer or answer.leg is not leg:
                return commands  # what follows was said by a leg that is given up
        return [*commands, *self._show(quick)] if quick else commands

    def _frame(self, answer: Answering, data: str) -> list[Command]:
        try:
            read = answer.frame(data)
        except OtherIds:
            return self._other_way([Cancel()])
        except Broken as error:
            return self._died(failures.broken(self._role, str(error)), final=error.final)
        commands = self._learnt(True) if read.verified else []
        commands += self._show(read.chunks)
        if read.over:
            commands += self._complete(cancel=True)
        return commands

    def _show(self, chunks: Sequence[Chunk] | None) -> list[Command]:
        if chunks is None:
            return []
        commands: list[Command] = []
        if not self._streaming:
            self._streaming = True
            commands.append(StartStream(self.plan))
        if chunks:
            commands.append(SendChunks(chunks))
            self._tries.progress()
        return commands

    def _complete(self, *, cancel: bool) -> list[Command]:
        answer = self._answer
        assert answer is not None
        commands: list[Command] = [Cancel()] if cancel else []
        commands += self._release(Verdict.GOOD)
        commands += self._show(answer.close())
        collected = answer.collected()
        commands.append(SendDone() if collected is None else self._whole(collected))
        return [*commands, self._finish(Outcome.OK, "200")]

    def _stream_over(self, failure: Failure) -> list[Command]:
        """The open leg reported its end; that is no failure once the answer was whole but for `[DONE]`."""
        assert self._answer is not None
        if self._answer.ended:
            return self._complete(cancel=False)
        return self._died(failure, cancel=False)

    def _died(self, failure: Failure, *, cancel: bool = True, final: bool = False) -> list[Command]:
        """The answer's engine is lost: all again before the client's first byte, else another engine goes on."""
        commands: list[Command] = [Cancel()] if cancel else []
        if not self._streaming:
            return [*commands, *self._again(failure)]
        engine, answer = self._engine, self._answer
        assert engine is not None and answer is not None
        commands += self._release(Verdict.NOTHING if final else failure.verdict)
        self._failure = failure
        goes_on = not final and answer.resumable(greedy=is_greedy(self.request))
        pause = self._tries.resume() if goes_on else None
        if pause is None:
            return [*commands, *self._interrupt()]
        self._avoid |= {engine.name}
        self.state = State.BACKOFF
        return [*commands, Wait(pause, resumes=True)]

    def _interrupt(self) -> list[Command]:
        """The stream cannot go on."""
        assert self._failure is not None
        interrupted = failures.interrupted(self._role, self._failure)
        return [*self._release(), SendError(interrupted.body()), self._finish(Outcome.INTERRUPTED, interrupted.code)]

    def _send_rest(self, *, no_chat_ids: bool = False) -> list[Command]:
        """The engine picked last goes on with an answer whose beginning the client has."""
        engine, answer, prefill = self._engine, self._answer, self._prefill
        assert engine is not None and answer is not None and prefill is not None
        spoken = Before(answer.leg.forwarded, answer.rewind())
        leg = rest(self.request, prefill, engine, self.settings, spoken, no_chat_ids=no_chat_ids)
        if leg is None:
            return self._interrupt()
        answer.resume(leg)
        self.state = State.ANSWER
        return [Send(leg.endpoint, leg.body, leg.stream), *([] if no_chat_ids else [Resumed()])]

    def _other_way(self, commands: list[Command]) -> list[Command]:
        """This engine does not take ids on chat; the same engine gets the leg in another way."""
        learnt = self._learnt(False) if commands else []
        again = self._send_rest if self._streaming else self._send_answer
        return [*commands, *learnt, *again(no_chat_ids=True)]

    # Endings

    def _again(self, failure: Failure) -> list[Command]:
        """The whole flow once more, if that is still allowed."""
        assert self._engine is not None
        self._avoid |= {self._engine.name}
        released = self._release(failure.verdict)
        self._failure = failure
        pause = self._tries.again()
        if pause is None:
            return [*released, *self._give_up(failure)]
        self._prefill = None
        self._answer = None
        self.state = State.BACKOFF
        return [*released, Wait(pause)]

    def _give_up(self, failure: Failure, outcome: Outcome = Outcome.FAILED) -> list[Command]:
        answer = Answer(self.plan, failure.status, dumps(failure.body()), retry_after=failure.retry_after)
        return [answer, self._finish(outcome, failure.code)]

    def _refuse(self, refused: Refused) -> list[Command]:
        released = self._release()
        answer = Answer(self.plan, refused.status, dumps(refused.body()))
        return [*released, answer, self._finish(Outcome.REFUSED, refused.code)]

    def _reject(self, event: Answered) -> list[Command]:
        released = self._release()
        answer = Answer(self.plan, event.status, failures.rejected(event), retry_after=event.retry_after)
        return [*released, answer, self._finish(Outcome.REJECTED, str(event.status))]

    def _expire(self) -> list[Command]:
        failure = failures.stopping()
        abandoned = self._abandon()
        if not self._streaming:
            return [*abandoned, *self._give_up(failure, Outcome.EXPIRED)]
        return [*abandoned, SendError(failure.body()), self._finish(Outcome.EXPIRED, failure.code)]

    def _abandon(self) -> list[Command]:
        if self._engine is None:
            return []
        return [Cancel(), *self._release()]

    def _release(self, verdict: Verdict = Verdict.NOTHING) -> list[Command]:
        if self._engine is None:
            return []
        name, self._engine = self._engine.name, None
        return [Release(name, verdict)]

    def _learnt(self, chat_ids: bool) -> list[Command]:
        return [] if self._engine is None else [Learnt(self._engine.name, chat_ids)]

    def _whole(self, payload: Json) -> Answer:
        return Answer(self.plan, 200, dumps(payload))

    def _finish(self, outcome: Outcome, code: str) -> Finish:
        self.state = State.DONE
        self._answer = None
        return Finish(self.plan, outcome, code)
