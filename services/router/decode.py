"""D's leg: which endpoint, which body, and how its answer has to be read.

A leg continues P's ids with (`forwarded` = 1) or without (0) the first token, or repeats the client's request as it
came. Ids are never turned into text and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pegaflow.common.transfer_params import EXPECTED, KV_PARAMS
from pegaflow.services.router.fields import CHAT_ONLY, MANAGED, RENDERED, has_only_text, is_set
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json
from pegaflow.services.router.prefill import PrefillAnswer


class Way(StrEnum):
    """How D takes a chat prompt as ids."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class DecodeLeg:
    """`reshape`: D answers in completions' shape and the client wants chat's. `verify`: the prompt ids D must name
    in its first frame before its answer is believed, or None. `own_stops`: the router searches for stop strings.
    `before`: tokens of the answer that stand in the prompt, the first one and those that another engine said.
    `resumable`: the ids that D says are kept, so that another engine can go on from them.
    """

    endpoint: Endpoint
    body: Json
    stream: bool
    forwarded: int = 0
    reshape: bool = False
    continued: bool = False
    verify: list[int] | None = None
    own_stops: bool = False
    before: int = 0
    resumable: bool = False


class NoLimit(Exception):
    """The client gave no limit, completions needs one, and the model's length is not known."""


def continue_leg(
    request: ClientRequest,
    answer: PrefillAnswer,
    *,
    way: Way,
    forwarded: int,
    model_length: int | None,
    verify: bool = False,
    own_stops: bool = False,
    spoken: Sequence[int] = (),
    resumable: bool = False,
) -> DecodeLeg:
    """D continues from ids, behind `spoken` if another engine has said those already. Raises NoLimit; needs
    `answer.prompt_ids`, and `answer.token` if it is forwarded.
    """
    assert answer.prompt_ids is not None
    ids = answer.prompt_ids
    if forwarded:
        assert answer.token is not None
        ids = [*ids, answer.token]
    ids = [*ids, *spoken]
    before = forwarded + len(spoken)
    limit = None if request.limit is None else request.limit - before
    # Whether pages of decoded blocks are on their way nobody knows: the engine that made them may be dead.
    expected = {} if spoken or not answer.saved else {EXPECTED: True}
    if request.endpoint is Endpoint.CHAT and way is Way.CHAT:
        endpoint = Endpoint.CHAT
        body = dict(request.body)
        body[KV_PARAMS] = {**expected, "prompt_token_ids": ids}
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is not None:
                body[name] = limit
    else:
        endpoint = Endpoint.COMPLETIONS
        body = _completions_body(request)
        body[KV_PARAMS] = dict(expected)
        body["prompt"] = ids
        if limit is None:
            if model_length is None:
                raise NoLimit
            limit = model_length - len(ids)
        body["max_tokens"] = limit
    if is_set(request.body, "min_tokens"):
        body["min_tokens"] = max(request.min_tokens - before, 0)
    if own_stops:
        body.pop("stop", None)
        body.pop("include_stop_str_in_output", None)
    checked = ids if verify and endpoint is Endpoint.CHAT else None
    # Stop strings are searched token by token, so a client that does not stream still needs a stream from D.
    stream = request.stream or own_stops
    body["stream"] = stream
    body.pop("stream_options", None)
    if stream and (not request.stream or request.include_usage):
        body["stream_options"] = {"include_usage": True}
        if request.usage_in_every_chunk:
            body["stream_options"]["continuous_usage_stats"] = True
    if request.want_token_ids or checked is not None or own_stops or resumable:
        body["return_token_ids"] = True
    else:
        body.pop("return_token_ids", None)
    return DecodeLeg(
        endpoint=endpoint,
        body=body,
        stream=stream,
        forwarded=forwarded,
        reshape=endpoint is not request.endpoint,
        continued=True,
        verify=checked,
        own_stops=own_stops,
        before=before,
        resumable=resumable,
    )


def replay_leg(request: ClientRequest, answer: PrefillAnswer | None, *, way: Way | None, saved: bool = True) -> DecodeLeg:
    """D gets the client's request as it came, with P's ids for the prompt where that changes nothing else.

    `way` CHAT: D is known to take ids on chat. The answer is None where nothing but `saved` of P's was needed.
    """
    body = dict(request.body)
    body[KV_PARAMS] = {EXPECTED: True} if (saved if answer is None else answer.saved) else {}
    ids = answer.prompt_ids if answer is not None else None
    # Echo wants the prompt's text, a suffix belongs to the rendering: both need the client's own prompt.
    if ids is not None and not is_set(body, "echo") and not is_set(body, "suffix"):
        if request.endpoint is Endpoint.COMPLETIONS:
            body["prompt"] = ids
            _drop_truncation(body)
        elif way is Way.CHAT and has_only_text(body):
            body[KV_PARAMS]["prompt_token_ids"] = ids
            _drop_truncation(body)
    return DecodeLeg(endpoint=request.endpoint, body=body, stream=request.stream)


def relay_leg(request: ClientRequest) -> DecodeLeg:
    """One engine answers the client's request as it came, without what only routers may say."""
    body = dict(request.body)
    body.pop(KV_PARAMS, None)
    return DecodeLeg(endpoint=request.endpoint, body=body, stream=request.stream)


def _completions_body(request: ClientRequest) -> Json:
    if request.endpoint is Endpoint.COMPLETIONS:
        gone = frozenset({"max_completion_tokens", "add_special_tokens"})
    else:
        gone = RENDERED | CHAT_ONLY | MANAGED
    return {name: value for name, value in request.body.items() if name not in gone}


def _drop_truncation(body: Json) -> None:
    # P has cut the prompt; its ids are what is left.
    body.pop("truncate_prompt_tokens", None)
    body.pop("truncation_side", None)
