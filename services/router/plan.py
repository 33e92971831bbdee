"""The decision after P's answer: splice, replay, or nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pegaflow.services.router.decode import DecodeLeg, NoLimit, Way, continue_leg, replay_leg
from pegaflow.services.router.fields import CHAT_ONLY, has_only_text, is_set, logprobs_asked, refuse_unsplittable, unsplicable
from pegaflow.services.router.openai import ClientRequest, Endpoint, Refused
from pegaflow.services.router.prefill import PrefillAnswer
from pegaflow.services.router.seam import crosses_seam
from pegaflow.services.router.steps import EngineFacts, Plan, Role


class Mode(StrEnum):
    FIRST_TOKEN = "first_token"  # P and D share one answer
    PREFILL_DECODE = "prefill_decode"  # P first, then D with the client's request
    MIXED = "mixed"  # any engine, alone


class DecodeApi(StrEnum):
    AUTO = "auto"
    CHAT = "chat"
    COMPLETIONS = "completions"


class Unsplicable(StrEnum):
    REPLAY = "replay"
    STRIP = "strip"
    REJECT = "reject"


class Resume(StrEnum):
    """Which streams go on with another decode engine when theirs is lost."""

    GREEDY = "greedy"  # those at temperature 0: the other engine says the same
    ALWAYS = "always"  # sampled ones too: the rest is another sample
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """`retries`: whole flows after the first. `model_length`: overrides what engines say, in tokens. `own_key`: engines are
    shown the router's key and not the client's.
    """

    mode: Mode
    decode_api: DecodeApi = DecodeApi.AUTO
    unsplicable: Unsplicable = Unsplicable.REPLAY
    model_length: int | None = None
    retries: int = 1
    resume: Resume = Resume.GREEDY
    own_key: bool = False


class Choice(NamedTuple):
    plan: Plan
    leg: DecodeLeg


class Before(NamedTuple):
    """What was said of an answer before an engine goes on with it: P's token or not, and the ids of engines like it."""

    forwarded: int
    ids: Sequence[int]


def begin(request: ClientRequest, settings: FlowSettings) -> tuple[Role, Plan]:
    """Whose answer the client gets, and the plan if it is known. Raises Refused for what cannot be split."""
    match settings.mode:
        case Mode.MIXED:
            return Role.ENGINE, Plan.DIRECT
        case Mode.PREFILL_DECODE:
            return Role.DECODE, Plan.NONE
        case Mode.FIRST_TOKEN:
            refuse_unsplittable(request.endpoint, request.body)
            refuse_early(request, settings)
            if request.limit is not None and (request.limit <= 1 or request.limit < request.min_tokens):
                # One token, or none (echo), or numbers that the engine will complain about: nothing to split.
                return Role.PREFILL, Plan.PREFILL
            return Role.DECODE, Plan.NONE


def refuse_early(request: ClientRequest, settings: FlowSettings) -> None:
    """Raises Refused for fields that `--pd-unsplicable reject` rejects, as far as the request alone tells."""
    if settings.unsplicable is not Unsplicable.REJECT:
        return
    way = Way.COMPLETIONS if settings.decode_api is DecodeApi.COMPLETIONS else Way.CHAT
    _reject(_obstacles(request, way))


def prefill_suffices(request: ClientRequest, answer: PrefillAnswer, model_length: int | None) -> bool:
    """Whether P's one token is the whole answer: it ended the text, or nothing more fits."""
    if is_set(request.body, "echo") or is_set(request.body, "prompt_logprobs"):
        return False  # P was asked for ids, with which vLLM does not echo
    if answer.finish_reason not in (None, "length"):
        return True
    if model_length is None or answer.prompt_ids is None:
        return False
    return len(answer.prompt_ids) + 1 >= model_length


def choose(
    request: ClientRequest, answer: PrefillAnswer, engine: EngineFacts, settings: FlowSettings, *, no_chat_ids: bool
) -> Choice:
    """D's leg. `no_chat_ids`: this engine has just been seen not to take ids on chat.

    Raises Refused under `reject` where only the engine's ways decide.
    """
    if answer.prompt_ids is None:
        return Choice(Plan.REPLAY, replay_leg(request, answer, way=None))
    chat = request.endpoint is Endpoint.CHAT
    way, certain = _way(engine, settings, no_chat_ids)
    obstacles = _obstacles(request, way)
    length = settings.model_length or engine.model_length
    resumable = not obstacles and may_resume(request, settings)
    replay = Choice(Plan.REPLAY, replay_leg(request, answer, way=way if certain else None))
    if obstacles and settings.unsplicable is Unsplicable.REJECT:
        _reject(obstacles)
    stripping = settings.unsplicable is Unsplicable.STRIP and chat and "messages" not in obstacles
    if stripping and (obstacles or not answer.forwardable):
        # This engine cannot replay chat: what has no equal on completions goes, the rest keeps its full meaning.
        way = Way.COMPLETIONS
        forwarded = int(answer.forwardable and set(obstacles) <= CHAT_ONLY)
    elif obstacles or not (answer.forwardable or (answer.spoke_only_text and resumable)):
        return replay
    else:
        # Where P's token is half a character, D says the whole answer, but on ids: so another engine can go on with it.
        forwarded = int(answer.forwardable)
    crosses = bool(forwarded) and crosses_seam(answer.text, request.stops)
    try:
        leg = continue_leg(
            request,
            answer,
            way=way,
            forwarded=forwarded,
            model_length=length,
            verify=chat and way is Way.CHAT and not certain,
            # An engine that searches for stop strings holds text back: then ids and text end at different places.
            own_stops=crosses or (resumable and bool(request.stops)),
            resumable=resumable,
        )
    except NoLimit:
        return replay
    return Choice(Plan.SPLICE if forwarded else Plan.REPLAY, leg)


def is_greedy(request: ClientRequest) -> bool:
    """An absent temperature is the server's default, which nobody here knows."""
    temperature = request.body.get("temperature")
    return isinstance(temperature, int | float) and temperature == 0


def may_resume(request: ClientRequest, settings: FlowSettings) -> bool:
    """Whether this request's stream goes on with another engine if it can be continued at all."""
    if not request.stream or settings.resume is Resume.NEVER:
        return False
    return settings.resume is Resume.ALWAYS or is_greedy(request)


def rest(
    request: ClientRequest,
    answer: PrefillAnswer,
    engine: EngineFacts,
    settings: FlowSettings,
    said: Before,
    *,
    no_chat_ids: bool,
) -> DecodeLeg | None:
    """The leg of an engine that goes on behind what another said; None where this engine cannot."""
    assert answer.prompt_ids is not None
    way, certain = _way(engine, settings, no_chat_ids)
    before = said.forwarded + len(said.ids)
    length = settings.model_length or engine.model_length
    full = length is not None and len(answer.prompt_ids) + before >= length
    if full or _obstacles(request, way) or (request.limit is not None and request.limit <= before):
        return None
    try:
        return continue_leg(
            request,
            answer,
            way=way,
            forwarded=said.forwarded,
            model_length=length,
            verify=request.endpoint is Endpoint.CHAT and way is Way.CHAT and not certain,
            own_stops=bool(request.stops),
            spoken=said.ids,
            resumable=True,
        )
    except NoLimit:
        return None


def _way(engine: EngineFacts, settings: FlowSettings, no_chat_ids: bool) -> tuple[Way, bool]:
    match settings.decode_api:
        case DecodeApi.CHAT:
            return Way.CHAT, True
        case DecodeApi.COMPLETIONS:
            return Way.COMPLETIONS, True
        case DecodeApi.AUTO:
            if no_chat_ids or engine.chat_ids is False:
                return Way.COMPLETIONS, True
            return Way.CHAT, engine.chat_ids is True


def _obstacles(request: ClientRequest, way: Way) -> tuple[str, ...]:
    found = unsplicable(request.endpoint, request.body)
    if request.endpoint is Endpoint.CHAT:
        if way is Way.COMPLETIONS:
            found += logprobs_asked(request.body)
        if not has_only_text(request.body):
            found += ("messages",)
    return found


def _reject(obstacles: tuple[str, ...]) -> None:
    if obstacles:
        name = obstacles[0]
        raise Refused(
            f"{name} cannot be split over prefill and decode engines, and the router is set to reject it",
            param=name,
            code="unsupported_value",
        )
