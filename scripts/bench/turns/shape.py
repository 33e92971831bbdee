"""How large everything is: the conversations, and the caches that they need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

BLOCK: Final = 32
FLOAT_BYTES: Final = 4
MIB: Final = 1 << 20
GIB: Final = 1 << 30
SPARE: Final = 1.5
"""Above what the conversations take: tails, prompts of the warm-up, blocks of requests that run."""
ROOMY: Final = 3.0
"""The same for a tier: two engines save there, and nothing that either has dropped goes before its time."""
SMALL: Final = 0.25
"""Of what the conversations take at their ends."""


class Shape(NamedTuple):
    """All in ids. A prompt is all that was said before, answers too, and `growth` ids more; the first one has `first`."""

    sessions: int
    turns: int
    first: int
    growth: int
    answer: int

    def piece(self, turn: int) -> int:
        """What the user adds in this turn."""
        return self.growth if turn else self.first

    def prompt(self, turn: int) -> int:
        return self.first + turn * (self.answer + self.growth)

    @property
    def requests(self) -> int:
        return self.sessions * self.turns

    @property
    def whole(self) -> int:
        """A conversation at its end."""
        return self.prompt(self.turns - 1) + self.answer

    @property
    def pages(self) -> int:
        """Of all conversations at their ends."""
        return self.sessions * -(-self.whole // BLOCK)


def page_bytes(config: Mapping[str, Any]) -> int:
    """A block's keys and values of all layers, in float32. `config`: the model's config.json."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return int(config["num_hidden_layers"] * 2 * config.get("num_key_value_heads", heads) * width * FLOAT_BYTES * BLOCK)


def kv_gib(shape: Shape, page: int) -> int:
    """vLLM's own cache for all conversations: whoever recomputes does so because of where requests went, not for want of room."""
    return max(1, -(-int(shape.pages * page * SPARE) // GIB))


def pool_bytes(shape: Shape, page: int, *, small: bool) -> int:
    """A tier's pool for all conversations with room to spare, or for a quarter of them; whole MiB."""
    return -(-int(shape.pages * page * (SMALL if small else ROOMY)) // MIB) * MIB


def small_blocks(shape: Shape, longest: int) -> int:
    """P's own cache where that shall not hold all conversations either: for a quarter of them, and at least for one prompt of
    `longest` ids, without which vLLM does not start; and the block that it never gives away.

    P decodes nothing, so nothing that runs there grows: vLLM admits a prompt only when all of it fits, and a load only beside
    what the prompts that are computed still need. D has no such size: in the last turn it decodes all conversations at once.
    """
    return max(int(shape.pages * SMALL), longest // BLOCK) + 1
