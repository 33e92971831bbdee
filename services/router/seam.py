"""Stop strings across the seam between P's token and D's text.

D sees the first token as prompt, so a stop string that begins in it and ends later is invisible to D. Where the
end of the first token's text could begin one, the router takes over all stop strings of the request: D gets none,
and the joined text is searched the way vLLM does it (v1/engine/detokenizer.py, `check_stop_strings`): after each
token, for matches that end in the new text, the one that ends first; text that may yet become part of a match
is held back unless the client wants stop strings in the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def crosses_seam(first_text: str, stops: Sequence[str]) -> bool:
    """Whether some stop string could begin in the first token's text and end after it."""
    return any(first_text.endswith(stop[:length]) for stop in stops for length in range(1, min(len(stop), len(first_text) + 1)))


class Scanned(NamedTuple):
    """`text` may be sent now; `stop` is the stop string that was found, or None."""

    text: str
    stop: str | None


class StopScanner:
    """Searches the text of one answer, fed token by token, P's token included."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool, min_tokens: int) -> None:
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._min_tokens = min_tokens
        self._hold = 0 if keep_stop else max((len(stop) for stop in stops), default=1) - 1
        self._tokens = 0
        self._text = ""
        self._sent = 0
        self._from = 0  # matches must end after this offset: the text of the first min_tokens tokens

    def feed(self, text: str, tokens: int) -> Scanned:
        """Add the text of the next `tokens` tokens (normally 1; text may be empty)."""
        before = len(self._text)
        self._text += text
        self._tokens += tokens
        if self._tokens <= self._min_tokens:
            self._from = len(self._text)
            return self._held()
        found = self._find(max(before, self._from))
        if found is None:
            return self._held()
        start, stop = found
        end = start + len(stop) if self._keep_stop else start
        return Scanned(self._take(end), stop)

    def finish(self) -> str:
        """The answer ended without a stop string: what was held back."""
        return self._take(len(self._text))

    def _find(self, after: int) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self._text.find(stop, max(0, after + 1 - len(stop)))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _held(self) -> Scanned:
        return Scanned(self._take(len(self._text) - self._hold), None)

    def _take(self, end: int) -> str:
        taken = self._text[self._sent : end] if end > self._sent else ""
        self._sent = max(self._sent, end)
        return taken
