"""What each request field means for splitting a request over P and D.

A field that is not known to be safe is not spliced: a new sampling parameter may look at output tokens, and D would
take the first token for prompt. The request is then replayed whole, which is right whatever the field does.
Names and defaults: vLLM 0.32, entrypoints/openai/{chat_completion,completion}/protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pegaflow.common.transfer_params import KV_PARAMS
from pegaflow.services.router.openai import Endpoint, Json, Refused

RENDERED: Final = frozenset(
    {
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "mm_payload",
        "return_mm_kwargs",
        "reasoning_effort",
        "parallel_tool_calls",
        "include_reasoning",
        "return_prompt_text",
        "add_special_tokens",
    }
)
"""Chat fields whose work is done once the prompt is ids: a completions leg on those ids does not need them."""

SAMPLING: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "allowed_token_ids",
        "length_penalty",
    }
)
"""The same on both endpoints, and blind to which tokens are prompt and which are output."""

CARRIED: Final = frozenset(
    {
        "model",
        "user",
        "priority",
        "request_id",
        "session_id",
        "cache_salt",
        "stream_interval",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
    }
)
"""Not about tokens; the same on both endpoints."""

MANAGED: Final = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "best_of",
        "prompt",
        "stream",
        "stream_options",
        "return_token_ids",
        KV_PARAMS,
    }
)
"""Set by the router in each leg."""

LOGPROBS: Final = frozenset({"logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids"})
"""Merged where D answers on the client's endpoint; chat logprobs have no place in a completions answer."""

CHAT_ONLY: Final = LOGPROBS | {"tools", "tool_choice", "echo"}
"""What `--pd-unsplicable strip` drops on a completions leg, because it has no equal there."""

_TEXT_FORMAT: Final = {"type": "text"}
_INERT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "response_format": lambda value: value == _TEXT_FORMAT,
    "tool_choice": lambda value: value == "none",
    "thinking_token_budget": lambda value: value == -1,
    "return_token_offsets": lambda value: value is False,
    "mm_payload": lambda value: True,
    "return_mm_kwargs": lambda value: True,
}
"""Values that say nothing more than an absent field; null, false, 0 for switches, "" and empty lists do so always."""

_SWITCHES: Final = frozenset(
    {"echo", "use_beam_search", "watermarking", "logprobs", "top_logprobs", "routed_experts_prompt_start"}
)


def is_set(body: Mapping[str, Any], name: str) -> bool:
    """Whether the client asked for something by this field."""
    value = body.get(name)
    if value is None or value == [] or value == {} or value == "":
        return False
    if name in _INERT:
        return not _INERT[name](value)
    if name in _SWITCHES and isinstance(value, bool):
        return value
    if name in ("routed_experts_prompt_start", "top_logprobs"):
        return bool(value != 0)
    return True


def refuse_unsplittable(endpoint: Endpoint, body: Json) -> None:
    """Raises Refused for what cannot be split over two engines in any way, naming the field."""
    for name in ("n", "best_of"):
        value = body.get(name)
        if isinstance(value, int | float) and value > 1:
            raise _unsupported(name, f"{name} > 1")
    for name in ("use_beam_search", "prompt_embeds", "ec_transfer_params"):
        if is_set(body, name):
            raise _unsupported(name, name)
    if endpoint is Endpoint.COMPLETIONS and isinstance(body.get("prompt"), list):
        prompt = body["prompt"]
        if any(isinstance(part, str | list) for part in prompt):
            if len(prompt) > 1:
                raise _unsupported("prompt", "a batch of prompts")
            if not prompt[0]:
                raise Refused("prompt must not be empty", param="prompt")


def unsplicable(endpoint: Endpoint, body: Json) -> tuple[str, ...]:
    """The fields because of which the first token cannot be forwarded as prompt.

    Chat logprobs are not among them: they depend on D's endpoint (:func:`logprobs_asked`).
    """
    harmless = SAMPLING | CARRIED | MANAGED | LOGPROBS
    if endpoint is Endpoint.CHAT:
        harmless |= RENDERED
    else:
        harmless |= {"add_special_tokens"}  # P has added them; ids are taken as they are
    return tuple(name for name in body if name not in harmless and is_set(body, name))


def logprobs_asked(body: Json) -> tuple[str, ...]:
    """The fields by which a chat request asks for logprobs."""
    return tuple(name for name in ("logprobs", "top_logprobs", "logprob_token_ids") if is_set(body, name))


def has_only_text(body: Json) -> bool:
    """Whether all messages of a chat request are text: vLLM renders again, ids or not, when one is not."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(_is_text(part) for part in content):
            return False
    return True


def _is_text(part: Any) -> bool:
    if isinstance(part, str):
        return True
    # A part may carry an image beside its text, so the other keys count as well.
    return (
        isinstance(part, dict)
        and part.get("type") in ("text", "input_text", "output_text", "refusal")
        and part.keys() <= {"type", "text", "refusal", "cache_control"}
    )


def _unsupported(param: str, what: str) -> Refused:
    return Refused(f"{what} is not supported with --pd-first-token", param=param, code="unsupported_value")
