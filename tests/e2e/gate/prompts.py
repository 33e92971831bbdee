"""What the engines of the gate are asked: ids, reproducible, different for every topic."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from .models import VOCABULARY


class Source(Protocol):
    def words(self, topic: str, count: int) -> list[int]:
        """`count` ids. Two topics share no block."""

    def turn(self, chat: str, number: int) -> list[int]:
        """What a user adds to a chat in one turn, up to where the model's answer begins."""

    def text(self, ids: tuple[int, ...]) -> str:
        """What a user would read."""


class RandomIds:
    """For models that speak no language."""

    def words(self, topic: str, count: int) -> list[int]:
        chosen = random.Random(topic)
        return [chosen.randrange(3, VOCABULARY) for _ in range(count)]

    def turn(self, chat: str, number: int) -> list[int]:
        return self.words(f"{chat} {number}", 41)

    def text(self, ids: tuple[int, ...]) -> str:
        return " ".join(map(str, ids))


class English:
    """For SmolLM2."""

    QUESTIONS = (
        "Name three {} of Europe and say one sentence about each of them, please.",
        "Which of these {} is the largest, and how do you know that it is?",
        "Write one sentence about the first of the three {} for a small child.",
    )

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def words(self, topic: str, count: int) -> list[int]:
        text = "".join(
            f"The {topic} of house number {7 * i + 3} is {('old', 'red', 'tall', 'quiet')[i % 4]}. "
            for i in range(count // 6 + 2)
        )
        return self._encode(text)[:count]

    def turn(self, chat: str, number: int) -> list[int]:
        before = "<|im_end|>\n" if number else ""
        question = self.QUESTIONS[number].format(chat)
        return self._encode(f"{before}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")

    def text(self, ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
