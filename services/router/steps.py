"""What goes into a flow (events) and what comes out of it (commands).

A flow has at most one leg open: P's, or the one whose answer the client gets. The shell carries out commands in
order and reports what happened; everything that a decision needs is in the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pegaflow.services.router.openai import Endpoint, Json


class State(StrEnum):
    NEW = "new"
    PICK_PREFILL = "pick_prefill"
    PREFILL = "prefill"
    BACKOFF = "backoff"
    PICK_ANSWER = "pick_answer"
    ANSWER = "answer"
    DONE = "done"


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    ENGINE = "engine"


class Plan(StrEnum):
    """How a request was answered; the value of the `x-pegaflow-plan` header."""

    SPLICE = "splice"  # P's first token, then D's rest
    REPLAY = "replay"  # P warms the cache, D answers the whole request
    PREFILL = "prefill"  # P answers alone
    DIRECT = "direct"  # one mixed engine answers
    NONE = "none"  # it ended before that was decided


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"  # by the router, before anything was sent
    REJECTED = "rejected"  # by an engine, with its own 4xx
    FAILED = "failed"  # an error answer before the client had a byte of it
    INTERRUPTED = "interrupted"  # an error frame within the stream
    GONE = "gone"  # the client went away
    EXPIRED = "expired"  # the router was stopped before it was done


class FailureKind(StrEnum):
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BUSY = "busy"
    UNAUTHORIZED = "unauthorized"
    FAILED = "failed"


class Verdict(StrEnum):
    """What a request showed about its engine."""

    GOOD = "good"  # it answered whole
    NOTHING = "nothing"  # the client's mistake, or its leaving; or only that it has much to do
    BAD = "bad"  # it failed
    DEAD = "dead"  # it could not be reached


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine when it is picked. `chat_ids`: whether its chat endpoint takes prompt ids; None:
    not seen yet. `model_length` in tokens, None where it does not say.
    """

    name: str
    chat_ids: bool | None = None
    model_length: int | None = None


# Events


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class Picked:
    engine: EngineFacts


@dataclass(frozen=True, slots=True)
class NoEngine:
    pass


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer came: every one that is not a stream."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """The data of events of a stream that was answered with 200: at least one, and all that came at once."""

    data: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream ended: after `[DONE]` or not, the flow knows."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The leg failed without an answer, or in the middle of one."""

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True)
class Woke:
    pass


@dataclass(frozen=True, slots=True)
class Spent:
    """In place of Woke: all requests together have had as many retries as they may."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The client went away."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The router's drain deadline passed."""


Event = Begin | Picked | NoEngine | Answered | Frames | Ended | Failed | Woke | Spent | Gone | Expired


# Commands

Chunk = Json | str


@dataclass(frozen=True, slots=True)
class Pick:
    """Choose an engine, not one of `avoid` if there is another; answered by Picked or NoEngine. `ids`: the prompt's, where
    P has named them.
    """

    role: Role
    avoid: frozenset[str]
    ids: Sequence[int] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Send:
    """Open a leg to the engine picked last; answered by Answered, or Frames and Ended, or Failed."""

    endpoint: Endpoint
    body: Json
    stream: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up the open leg now; it reports nothing more."""


@dataclass(frozen=True, slots=True)
class Release:
    """The flow is done with an engine: exactly one for each Picked."""

    engine: str
    verdict: Verdict = Verdict.NOTHING


@dataclass(frozen=True, slots=True)
class Learnt:
    engine: str
    chat_ids: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Before the flow is begun again, or another engine goes on (`resumes`). Answered by Woke, or Spent."""

    seconds: float
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class StartStream:
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendChunks:
    """Text is a whole event already, and says something of the answer."""

    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class SendDone:
    """The `[DONE]` frame: the answer is whole."""


@dataclass(frozen=True, slots=True)
class SendError:
    """The last frame of a stream that cannot be finished."""

    body: Json


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer for the client. `retry_after` in whole seconds."""

    plan: Plan
    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The one terminal command. `code` is the HTTP status as text, or the error's code."""

    plan: Plan
    outcome: Outcome
    code: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """For the count: an engine was asked to go on with a stream that another began."""


Command = (
    Pick | Send | Cancel | Release | Learnt | Wait | Resumed | StartStream | SendChunks | SendDone | SendError | Answer | Finish
)
