"""docs/protocol.md is the authority: it lists every kind with its fields, in order, with their types."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

import pytest
from pegaflow.common.wire import codec, messages
from pegaflow.common.wire.errors import ErrorCode

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
ROWS = {match[1]: match[2] for match in re.finditer(r"^\| `(\w+)` \| (.*?) \| .* \|$", PAGE, re.MULTILINE)}


def test_every_kind_is_listed() -> None:
    assert messages.__all__, "importing the messages registers their kinds"
    assert set(codec.kinds()) <= set(ROWS)


@pytest.mark.parametrize("kind", codec.kinds())
def test_fields_stand_in_order_with_their_types(kind: str) -> None:
    cls = codec.message_class(kind)
    hints = get_type_hints(cls, include_extras=True)
    wanted = [
        f"{field.name} `{hints[field.name].__metadata__[0]}`"
        + ("" if field.default is MISSING and field.default_factory is MISSING else "?")
        for field in fields(cls)
    ]
    assert ROWS[kind] == (", ".join(wanted) or "\N{EN DASH}")


def test_error_codes_are_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in ErrorCode)
