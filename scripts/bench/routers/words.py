"""The backend's language: token n of every answer is the word n, so that a torn or doubled answer is seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_ID: Final = 1000
"""Of an answer's first token. Ids of prompts are below it."""
PROMPT_ID: Final = 10
PROMPT_IDS: Final = 900
"""How many different ids prompts have."""


def word(number: int) -> str:
    return f" w{number}"


def text(first: int, count: int) -> str:
    return "".join(map(word, range(first, first + count)))


def token_id(number: int) -> int:
    return FIRST_ID + number


def prompt_ids(prompt: str) -> list[int]:
    """One for four characters."""
    return [PROMPT_ID + n % PROMPT_IDS for n in range(len(prompt) // 4)]


def next_word(ids: Sequence[int]) -> int:
    """The number of the word that follows: the first, or the one behind those of an answer that stand in the prompt."""
    last = ids[-1] if ids else 0
    return last - FIRST_ID + 1 if last >= FIRST_ID else 0
