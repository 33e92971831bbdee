"""One request as vLLM's scheduler sees it (`v1/request.py`), with the stamps its rows have to get."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from oracle.prefixes import ADAPTED, BLOCK, PLAIN, SALTED, Prefixes, as_hash, token


class Status(Enum):
    WAITING = auto()
    LOADING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Kind(Enum):
    """What is special about a request. TURNS: a streaming session, whose prompt grows when an answer has ended."""

    PLAIN = auto()
    SALTED = auto()
    ADAPTED = auto()
    UNCACHED = auto()
    TURNS = auto()


ROOTS = {Kind.SALTED: SALTED, Kind.ADAPTED: ADAPTED}


class Request:
    mm_features: tuple[Any, ...] = ()
    prompt_embeds: Any = None
    abort_immediately = False

    def __init__(
        self, request_id: str, prefixes: Prefixes, text: int, prompt: int, answer: int, kind: Kind, hash_block: int = BLOCK
    ) -> None:
        self.request_id = request_id
        self.kind = kind
        self.text = text
        self._prefixes = prefixes
        self._hash_block = hash_block
        self.cache_salt = "salt" if kind is Kind.SALTED else None
        self.lora_request = "adapter" if kind is Kind.ADAPTED else None
        self.skip_reading_prefix_cache = kind is Kind.UNCACHED
        self.resumable = kind is Kind.TURNS
        self.turns_left = int(self.resumable)
        self.root = ROOTS.get(kind, PLAIN)
        self.kv_transfer_params: dict[str, Any] | None = None
        self._turned = 0
        self.prompt_token_ids = [token(text, position) for position in range(prompt)]
        self.num_prompt_tokens = prompt
        self.limit = prompt + answer
        self.num_tokens = 0
        self.truth: list[int] = []
        self.block_hashes: list[bytes] = []
        self.contents: list[bytes] = []
        self.grow(prompt)
        # What the scheduler keeps.
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.table: list[int] = []
        self.placeholders = 0
        self.decoding = False
        self.in_flight = 0
        self.stale = 0
        self.drop_stale = False
        self.sequence = 0
        self.life = 0
        # What the machine looks at.
        self.era = 0
        self.excused = False
        self.claims_failed = 0
        self.claimed = 0
        self.left: list[int] = []

    @property
    def plain(self) -> bool:
        return self.kind in (Kind.PLAIN, Kind.UNCACHED)

    def token(self, position: int) -> int:
        # A later turn of a session is of another text, or it would be the answer that the model gave anyhow.
        return token(self.text, position) + (50 if self._turned and position >= self._turned else 0)

    def rows(self, end: int) -> list[int]:
        """The right stamps of at least the first `end` positions, known yet or not."""
        truth = self.truth
        while len(truth) < end:
            truth.append(self._prefixes.after(truth[-1] if truth else self.root, self.token(len(truth))))
        return truth

    def grow(self, tokens: int) -> None:
        """The model said this many tokens more, or a turn brought them."""
        self.num_tokens += tokens
        self._hash()

    def turn(self, tokens: int, answer: int) -> None:
        """`_update_request_as_session`: what has no row yet is dropped, and the prompt goes on from there."""
        computed = self.num_computed_tokens
        self._turned = computed
        self.num_tokens = computed + tokens
        del self.truth[computed:]
        del self.block_hashes[computed // self._hash_block :]
        del self.contents[computed // BLOCK :]
        self._hash()
        self.prompt_token_ids = [self.token(position) for position in range(self.num_tokens)]
        self.num_prompt_tokens = self.num_tokens
        self.limit = self.num_tokens + answer
        self.turns_left -= 1

    def _hash(self) -> None:
        truth = self.rows(self.num_tokens)
        for hashes, size in ((self.block_hashes, self._hash_block), (self.contents, BLOCK)):
            while (len(hashes) + 1) * size <= self.num_tokens:
                hashes.append(as_hash(truth[(len(hashes) + 1) * size - 1]))
