"""What must not be missing: where nothing failed, every page that was computed is stored, and is found again.

The other models look for wrong rows. A connector that did nothing at all would pass them; it does not pass this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oracle.prefixes import BLOCK, as_hash
from oracle.request import Request
from oracle.shape import Shape
from oracle.tier import FINGERPRINT, Tier, Told
from oracle.verdict import Verdict


class Ledger:
    """`era` begins anew when the tier lost pages: a request offers each block once, so only later ones owe all of theirs."""

    def __init__(self, shape: Shape, tier: Tier, verdict: Verdict, seen: Counter[str]) -> None:
        self._shape = shape
        self._tier = tier
        self._verdict = verdict
        self._seen = seen
        self.era = 0
        self.owed: dict[bytes, str] = {}

    def lost(self) -> None:
        self.era += 1
        self.owed.clear()

    def computed(self, request: Request, written: int, table: Sequence[int]) -> None:
        """A step writes the rows up to `written`: known ones among them are to be stored, found or loaded ones included."""
        if not self._shape.options.saves or request.era != self.era or not self._tier.accepts:
            return  # what did not go out now is to go out with the request's next step
        full = min(written, request.num_tokens) // BLOCK
        for index in range(full):
            self._owe(request, (index + 1) * BLOCK)
        prompt = request.num_prompt_tokens
        if self._shape.saves_tails and request.plain and written >= prompt and prompt % BLOCK and len(table) > prompt // BLOCK:
            self._owe(request, prompt)

    def _owe(self, request: Request, end: int) -> None:
        self.owed.setdefault(_key(request, end), f"{request.request_id}, first {end} ids")

    def admitted(self, request: Request, found: int, tokens: int, told: Told | None) -> None:
        """vLLM goes on with `found` blocks of its own and `tokens` from the tier. That has to be what the tier said last."""
        if not self._shape.options.loads or request.skip_reading_prefix_cache:
            self._verdict.demand(not tokens, "loads what it must not even look up")
            return
        if request.claims_failed or request.excused or found >= (request.num_tokens - 1) // BLOCK:
            return
        if told is None:
            self._verdict.demand(False, f"{request.request_id} goes on and nobody was asked for it")
        elif told.session == self._tier.session():
            self._verdict.demand(
                told.tokens == request.num_tokens, f"{request.request_id} goes on with an answer to another question"
            )
            there = min(told.covered, request.num_tokens - 1)
            self._verdict.demand(
                found * BLOCK + tokens >= there, f"{request.request_id} goes on with less than it was told that there is"
            )

    def settled(self) -> None:
        """Everything has ended: what is owed is stored, and nothing that must not be done was done."""
        options = self._shape.options
        self._verdict.demand(options.saves or not self._tier.intents, "an engine that only reads has saved")
        self._verdict.demand(options.loads or not self._tier.lookups, "an engine that only writes has looked up")
        if self._shape.clean:
            missing = [who for key, who in self.owed.items() if key not in self._tier.sealed]
            self._verdict.demand(not missing, f"computed and not stored: {missing}")
            self._seen["owed"] += len(self.owed)

    def loadable(self, request: Request) -> int:
        """Tokens of this new request that are to come from the tier, if vLLM itself has none of them."""
        known, start = request.num_tokens, (request.num_tokens - 1) // BLOCK * BLOCK
        tails = self._shape.options.pd_tail_load and request.plain
        full = 0
        while full + BLOCK <= (start if tails else known) and _key(request, full + BLOCK) in self._tier.sealed:
            full += BLOCK
        ends = [end for end in (known - 1, known) if tails and full == start < end]
        return min(known - 1, next((end for end in ends if _key(request, end) in self._tier.sealed), full))

    def loaded(self, request: Request, wanted: int) -> None:
        """A second request for what has been stored has come to its end."""
        refused = self._shape.options.strict and wanted < request.num_prompt_tokens - 1
        wanted = request.num_prompt_tokens - 1 if refused else wanted
        self._verdict.demand(
            request.claimed == wanted, f"{request.request_id}: {request.claimed} of {wanted} tokens that are stored were loaded"
        )
        self._seen["second_loads"] += wanted > 0


def _key(request: Request, end: int) -> bytes:
    return FINGERPRINT + as_hash(request.rows(end)[end - 1])
