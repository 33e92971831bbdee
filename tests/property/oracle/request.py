"""One request as vLLM's scheduler sees it (`v1/request.py`), with the stamps its rows have to get."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from oracle.prefixes import BLOCK, PLAIN, SALTED, Prefixes, as_hash, token


class Status(Enum):
    WAITING = auto()
    LOADING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Request:
    lora_request: Any = None
    mm_features: tuple[Any, ...] = ()
    prompt_embeds: Any = None
    resumable = False
    skip_reading_prefix_cache = False
    abort_immediately = False

    def __init__(self, request_id: str, prefixes: Prefixes, text: int, prompt: int, limit: int, salted: bool) -> None:
        self.request_id = request_id
        self._prefixes = prefixes
        self._text = text
        self.cache_salt = "salt" if salted else None
        self.root = SALTED if salted else PLAIN
        self.kv_transfer_params: dict[str, Any] | None = None
        self.prompt_token_ids = [token(text, position) for position in range(prompt)]
        self.num_prompt_tokens = prompt
        self.limit = prompt + limit
        self.num_tokens = 0
        self.truth: list[int] = []
        self.block_hashes: list[bytes] = []
        self.grow(prompt)
        # What the scheduler keeps.
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.table: list[int] = []
        self.placeholders = 0
        self.in_flight = 0
        self.stale = 0
        self.life = 0
        self.claims_failed = 0

    def token(self, position: int) -> int:
        return token(self._text, position)

    def rows(self, end: int) -> list[int]:
        """The right stamps of at least the first `end` positions, known yet or not."""
        truth = self.truth
        while len(truth) < end:
            truth.append(self._prefixes.after(truth[-1] if truth else self.root, self.token(len(truth))))
        return truth

    def grow(self, tokens: int) -> None:
        """The model said this many tokens more."""
        self.num_tokens += tokens
        truth = self.rows(self.num_tokens)
        while (len(self.block_hashes) + 1) * BLOCK <= self.num_tokens:
            self.block_hashes.append(as_hash(truth[(len(self.block_hashes) + 1) * BLOCK - 1]))
