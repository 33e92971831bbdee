"""Users: sessions of several turns whose prompts grow, in front of shared system prompts. Pure; one seed, one story.

    system prompt (Zipf) │ user 1 │ answer 1 │ user 2 │ answer 2 │ …         a turn's prompt is everything before its answer

Nobody hashes anything here: a block's key is a digest of (whose block, which one), equal exactly where ids would be.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
from bisect import bisect
from collections.abc import Callable

import xxhash

from simulation.figures import Load

FINGERPRINT = b"simulated-model!"
CHUNK_TOKENS = 128
"""Of text that one of the router's marks stands for: 512 bytes at four bytes a token."""


def _digest(kind: bytes, owner: int, number: int) -> bytes:
    return bytes(xxhash.xxh3_128_digest(kind + struct.pack("<QQ", owner, number)))


def block_key(owner: int, number: int) -> bytes:
    """48 bytes, as with sha256."""
    digest = _digest(b"b", owner, number)
    return FINGERPRINT + digest + digest


def tail_key(owner: int, tokens: int) -> bytes:
    """Of the partial page that ends after so many tokens."""
    digest = _digest(b"t", owner, tokens)
    return FINGERPRINT + digest + digest


class Session:
    """One conversation. `system` tokens are shared with others (a multiple of the block), the rest is its own."""

    def __init__(self, number: int, system: int, system_tokens: int, turns: int, block: int, chance: random.Random) -> None:
        self.number, self.system, self.system_tokens, self.turns_left, self._block = number, system, system_tokens, turns, block
        self.tokens = system_tokens
        self.random = chance
        self._keys: list[bytes] = []
        self._marks: list[bytes] = []

    def keys(self, blocks: int) -> list[bytes]:
        """Of its first full blocks."""
        shared = self.system_tokens // self._block
        for i in range(len(self._keys), blocks):
            self._keys.append(block_key(2 * self.system, i) if i < shared else block_key(2 * self.number + 1, i))
        return self._keys[:blocks]

    def tail(self, tokens: int) -> bytes:
        return tail_key(self.number, tokens)

    def marks(self, tokens: int) -> list[bytes]:
        """What the router makes of the text."""
        shared, count = self.system_tokens // CHUNK_TOKENS, min(tokens // CHUNK_TOKENS, 256)
        for i in range(len(self._marks), count):
            owner = 2 * self.system if i < shared else 2 * self.number + 1
            self._marks.append(_digest(b"m", owner, i)[:8])
        return self._marks[:count]


class Users:
    """Begins sessions and turns. `turn(session, prompt, output)` is told of each, in tokens.

    When turns come does not depend on how fast anything is (open loop), and a session's lengths only on its number.
    """

    def __init__(self, load: Load, block: int, systems: int, seed: int, turn: Callable[[Session, int, int], None]) -> None:
        self._load, self._block, self._turn = load, block, turn
        self._seed = seed
        self._gaps, self._choices = random.Random(f"{seed} gaps"), random.Random(f"{seed} choices")
        self._numbers = itertools.count(1)
        weights = itertools.accumulate(1 / (rank + 1) ** load.zipf for rank in range(systems))
        self._systems = list(weights)
        lengths = random.Random(f"{seed} systems")
        self._lengths = [_some(load.system, lengths) for _ in range(systems)]

    def gap(self, rate: float) -> float:
        """Seconds to the next turn of anybody (Poisson)."""
        return self._gaps.expovariate(rate)

    def goes_on(self) -> bool:
        """Whether the next turn is not a first one, if somebody is ready for another."""
        return self._choices.random() < 1 - 1 / self._load.turns

    def pause(self, session: Session) -> float:
        """Seconds until its user is ready for the next turn."""
        return session.random.expovariate(1 / self._load.think)

    def begin(self) -> Session:
        number = next(self._numbers)
        chance = random.Random(f"{self._seed} session {number}")
        system = min(bisect(self._systems, chance.random() * self._systems[-1]), len(self._systems) - 1)
        stop = 1 / self._load.turns
        turns = 1 if stop >= 1 else 1 + int(math.log(1 - chance.random()) / math.log(1 - stop))
        return Session(number, system, self._lengths[system] // self._block * self._block, turns, self._block, chance)

    def next_turn(self, session: Session) -> None:
        session.turns_left -= 1
        session.tokens += _some(self._load.user, session.random)
        prompt, output = session.tokens, max(2, _some(self._load.output, session.random))
        session.tokens += output
        self._turn(session, prompt, output)


def _some(mean: int, chance: random.Random) -> int:
    return 1 + int(min(chance.expovariate(1 / mean), 8 * mean))
