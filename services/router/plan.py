"""The decision after P's answer: splice, replay, or nothing left to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pegaflow.services.router.decode import DecodeLeg, NoLimit, Way, continue_leg, replay_leg
from pegaflow.services.router.fields import CHAT_ONLY, has_only_text, is_set, logprobs_asked, unsplicable
from pegaflow.services.router.openai import ClientRequest, Endpoint, Refused
from pegaflow.services.router.prefill import PrefillAnswer
from pegaflow.services.router.seam import crosses_seam
from pegaflow.services.router.steps import EngineFacts, Plan


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


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """`retries`: whole flows after the first. `model_length`: overrides what engines say, in tokens."""

    mode: Mode
    decode_api: DecodeApi = DecodeApi.AUTO
    unsplicable: Unsplicable = Unsplicable.REPLAY
    model_length: int | None = None
    retries: int = 1


class Choice(NamedTuple):
    plan: Plan
    leg: DecodeLeg


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
        return Choice(Plan.REPLAY, replay_leg(request, None, way=None))
    chat = request.endpoint is Endpoint.CHAT
    way, certain = _way(engine, settings, no_chat_ids)
    obstacles = _obstacles(request, way)
    length = settings.model_length or engine.model_length
    replay = Choice(Plan.REPLAY, replay_leg(request, answer, way=way if certain else None))
    if obstacles and settings.unsplicable is Unsplicable.REJECT:
        _reject(obstacles)
    stripping = settings.unsplicable is Unsplicable.STRIP and chat and "messages" not in obstacles
    if stripping and (obstacles or not answer.forwardable):
        # This engine cannot replay chat: what has no equal on completions goes, the rest keeps its full meaning.
        way = Way.COMPLETIONS
        forwarded = int(answer.forwardable and set(obstacles) <= CHAT_ONLY)
    elif obstacles or not answer.forwardable:
        return replay
    else:
        forwarded = 1
    try:
        leg = continue_leg(
            request,
            answer,
            way=way,
            forwarded=forwarded,
            model_length=length,
            verify=chat and way is Way.CHAT and not certain,
            own_stops=bool(forwarded) and crosses_seam(answer.text, request.stops),
        )
    except NoLimit:
        return replay
    return Choice(Plan.SPLICE if forwarded else Plan.REPLAY, leg)


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
