"""JSON that services answer with."""

from __future__ import annotations

import json
from typing import Any

from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.operate import Document


def opened(answer: Document) -> dict[str, Any]:
    """The object in a document. Raises `bad_message` if it is none."""
    try:
        found = json.loads(answer.json)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RemoteError(ErrorCode.BAD_MESSAGE, f"the document of {answer.service} {answer.node} is no JSON object")
    return found
