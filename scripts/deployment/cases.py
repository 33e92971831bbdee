"""The prompts of the proof: exact lengths around the borders of blocks, and a chat of three turns."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from deployment.http import Json

BLOCK_SIZE: Final = 32
LENGTHS: Final = (1, 5, 31, 32, 33, 63, 64, 65, 100, 129, 400, 1500)
MAX_TOKENS: Final = 24

QUESTIONS: Final = (
    "Name three rivers of Europe and one city on each of them.",
    "Which of these rivers is the longest?",
    "Write one sentence about the first city.",
)


class Case(NamedTuple):
    """A request body without `stream`."""

    name: str
    path: str
    body: Json


class PromptMaker:
    """Prompts of an exact number of ids; two with different topics share no block.

    Args:
        model: folder with `tokenizer.json`.
        model_name: as the servers call it.
    """

    def __init__(self, model: Path, model_name: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._model_name = model_name

    def completion(self, topic: str, length: int) -> Case:
        """Numbered sentences on `topic`, cut to `length` ids: text that the model can continue, and every page matters."""
        text = "".join(
            f"The {topic} of house number {7 * i + 3} is {('old', 'red', 'tall', 'quiet')[i % 4]}. "
            for i in range(length // 6 + 2)
        )
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids[:length]
        return self.exact(f"{topic} {length}", ids)

    def text(self, token: int) -> str:
        """What this id alone is as text; empty for a special one."""
        return str(self._tokenizer.decode([token]))

    def exact(self, name: str, ids: list[int], **fields: object) -> Case:
        """A completion of exactly these ids; `fields` are added to the body or replace what is there."""
        body = _common(self._model_name) | {"prompt": ids} | fields
        return Case(name, "/v1/completions", body)

    def chat(self, name: str, messages: list[Json]) -> Case:
        return Case(name, "/v1/chat/completions", _common(self._model_name) | {"messages": messages})


def _common(model_name: str) -> Json:
    return {"model": model_name, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
