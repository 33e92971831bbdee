"""What decode engines have said of one answer: where another engine can go on exactly. Pure.

    ids    t2 t3 t4 t5 t6        what the present engine was given behind P's ids, and has said since
                 │    └ end      text of t4.. is out, but where it ends inside the ids is not certain
                 └ mark          up to here text and ids are known to end together

An engine that goes on from ids sees them as prompt. So it must be given only ids whose text is whole: a token that is
the first half of a character has no text yet, and an engine that coalesces tokens into one chunk does not say which
of them the text ends with. What was said after the mark is said again by the next engine, and left out of the
client's stream; if it says something else, the answer cannot be continued.
"""

from __future__ import annotations

from typing import NamedTuple


class Diverged(Exception):
    """The engine that goes on says something else than what the client has had already."""


class Heard(NamedTuple):
    """What of a chunk is new to the client; `passed`: how many of its ids were not."""

    ids: list[int]
    text: str
    passed: int


class Spoken:
    """Owned by one answer. `ids_shown`: the client sees ids (or their logprobs), not only text."""

    def __init__(self, *, ids_shown: bool) -> None:
        self.ids: list[int] = []
        self.characters = 0  # of the text up to the mark
        self._ids_shown = ids_shown
        self._mark = 0
        self._since = ""  # said by the present engine after the mark
        self._ahead = ""  # what the client has had beyond that, from an engine before
        self._ahead_ids: list[int] = []
        self._lost = False  # something came that ids and text do not tell

    def lose(self) -> None:
        """The client got what is neither text nor ids of text (reasoning, a tool call): nobody can say it again."""
        self._lost = True

    def hear(self, ids: list[int], text: str) -> Heard:
        """Raises Diverged."""
        self._lost = self._lost or bool(text and not ids)
        self.ids += ids
        self._since += text
        if len(ids) == 1 and text and text[-1] != "\ufffd":
            self.characters += len(self._since)
            self._mark, self._since = len(self.ids), ""
        known, self._ahead = self._ahead[: len(text)], self._ahead[len(text) :]
        passed = min(len(ids), len(self._ahead_ids))
        if not text.startswith(known) or (self._ids_shown and ids[:passed] != self._ahead_ids[:passed]):
            raise Diverged
        del self._ahead_ids[:passed]
        return Heard(ids[passed:], text[len(known) :], passed)

    @property
    def behind(self) -> bool:
        """The present engine has not yet said all that the client has had."""
        return bool(self._ahead)

    @property
    def level(self) -> bool:
        """All that is heard next is new to the client: :meth:`hear` gives it back as it is."""
        return not self._ahead and not self._ahead_ids

    def certain(self, *, greedy: bool) -> bool:
        """Whether another engine would say again what the client has had. A sampled one would not, so for it the client
        must have nothing after the mark.
        """
        shown = self._since or self._ahead or (self._ids_shown and (self._ahead_ids or len(self.ids) > self._mark))
        return not self._lost and (greedy or not shown)

    def rewind(self) -> list[int]:
        """To the mark: the ids for the next engine."""
        self._ahead = self._since + self._ahead
        self._ahead_ids = self.ids[self._mark :] + self._ahead_ids
        self._since = ""
        del self.ids[self._mark :]
        return list(self.ids)

    def validate(self) -> None:
        """Raises AssertionError unless the parts fit together; called by tests."""
        assert 0 <= self._mark <= len(self.ids)
        assert self._lost or self._since == "" or self._mark < len(self.ids), "text after the mark has ids after it"
