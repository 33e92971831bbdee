"""P's leg: the request with one token, and what its answer says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pegaflow.common.transfer_params import ASK_SAVED, KV_PARAMS, SAVED
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json

DEAD_ENDS = frozenset({"abort", "error"})
"""finish_reason of an answer that is none: the engine is shutting down, or lost the request."""


class Malformed(Exception):
    """An engine answered 200 with what is not an answer of that endpoint."""


def prefill_body(request: ClientRequest, *, ids: bool) -> Json:
    """The client's body, asking for one token, whether its pages are saved, and for `ids` where they are read (a megabyte)."""
    body = dict(request.body)
    if request.stream:
        body.pop("stream_options", None)  # without a stream they are wrong, and P is to say so
    body[KV_PARAMS] = {ASK_SAVED: True}
    body["stream"] = False
    if ids:
        body["return_token_ids"] = True
    else:
        body.pop("return_token_ids", None)
    body["max_tokens"] = 1
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = 1
    if "min_tokens" in body:
        # Not more than the client's: while output < min_tokens vLLM masks EOS and ignores stop strings.
        body["min_tokens"] = min(request.min_tokens, 1)
    return body


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """P's answer. `payload` is the whole of it, on the client's endpoint. `saved`: False where P knows that it saved nothing.

    `prompt_ids` is None where the engine gave none; `token` is t1's id, None unless exactly one came with it.
    """

    payload: Json
    choice: Json
    prompt_ids: list[int] | None
    token: int | None
    text: str
    finish_reason: str | None
    spoke_only_text: bool
    usage: Json
    saved: bool = True

    @property
    def forwardable(self) -> bool:
        """Whether t1 can stand at the end of D's prompt: its text must be whole and visible.

        Empty text is a special token or the start of a character; U+FFFD at the end is half a character, whose
        other half D would print as if it stood alone.
        """
        return self.token is not None and self.spoke_only_text and self.text != "" and self.text[-1] != "\ufffd"


def read_prefill(endpoint: Endpoint, payload: Any) -> PrefillAnswer:
    """Raises Malformed when there is no choice in it."""
    try:
        choice = payload["choices"][0]
        ids = payload.get("prompt_token_ids") if endpoint is Endpoint.CHAT else choice.get("prompt_token_ids")
        tokens = choice.get("token_ids")
        message = choice["message"] if endpoint is Endpoint.CHAT else choice
        text = (message.get("content") if endpoint is Endpoint.CHAT else message.get("text")) or ""
        extras = [name for name in ("reasoning", "reasoning_content", "tool_calls", "refusal") if message.get(name)]
        usage = payload.get("usage")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Malformed(f"no choice in P's answer: {error!r}") from None
    if not isinstance(text, str):
        raise Malformed("P's answer has no text")
    return PrefillAnswer(
        payload=payload,
        choice=choice,
        prompt_ids=ids if isinstance(ids, list) and ids else None,
        token=tokens[0] if isinstance(tokens, list) and len(tokens) == 1 else None,
        text=text,
        finish_reason=choice.get("finish_reason"),
        spoke_only_text=not extras,
        usage=usage if isinstance(usage, dict) else {},
        saved=has_saved(payload),
    )


def has_saved(payload: Any) -> bool:
    """False where P's answer says that it has saved nothing, so that nobody waits for pages."""
    told = payload.get(KV_PARAMS) if isinstance(payload, dict) else None
    return not (isinstance(told, dict) and told.get(SAVED) is False)
