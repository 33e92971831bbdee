"""What a server answered to a case."""

from __future__ import annotations

from typing import NamedTuple

from deployment.cases import Case
from deployment.http import Json, Server


class Answer(NamedTuple):
    """Generated ids and text; `prompt_ids` as the server says; `first_after`: seconds until the first token was at the
    client, None without a stream.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    first_after: float | None


def ask(server: Server, case: Case) -> Answer:
    """In one piece. Raises HttpFailure."""
    body = server.post(case.path, case.body)
    choice = body["choices"][0]
    return Answer(_prompt_ids(body, choice), tuple(choice["token_ids"]), _text(choice, "message"), choice["finish_reason"], None)


def stream(server: Server, case: Case) -> Answer:
    """As a stream. Raises HttpFailure."""
    ids: list[int] = []
    prompt_ids: tuple[int, ...] = ()
    text, finish_reason, first_after = "", None, None
    for after, event in server.stream(case.path, case.body):
        for choice in event["choices"]:
            prompt_ids = prompt_ids or _prompt_ids(event, choice)
            ids += choice.get("token_ids") or []
            piece = _text(choice, "delta")
            if first_after is None and (piece or choice.get("token_ids")):
                first_after = after
            text += piece
            finish_reason = choice.get("finish_reason") or finish_reason
    return Answer(prompt_ids, tuple(ids), text, finish_reason, first_after)


def _text(choice: Json, nested: str) -> str:
    return str((choice.get(nested) or {}).get("content") or choice.get("text") or "")


def _prompt_ids(body: Json, choice: Json) -> tuple[int, ...]:
    """vLLM puts them on the choice of a completion, and beside the choices of a chat."""
    return tuple(choice.get("prompt_token_ids") or body.get("prompt_token_ids") or ())
