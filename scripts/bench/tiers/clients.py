"""Clients that do the same thing at the same time, each with pages of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from children import Children
from helper import Helper
from stack import Stack

from tiers.figures import Span


class Clients:
    """Several processes of `client.py`, each with `pages` pages. A batch is named by its seed: the same seed, the same pages."""

    def __init__(self, helpers: Sequence[Helper], pages: int) -> None:
        self._helpers, self.pages = [helper.ready() for helper in helpers], pages

    def prepare(self, seeds: Sequence[int]) -> None:
        """One batch for each client."""
        for helper, seed in zip(self._helpers, seeds, strict=True):
            helper.order(do="prepare", seed=seed, count=self.pages)
        for helper in self._helpers:
            helper.answer()

    def copy(self) -> Span:
        """Every byte from one place of a client's own memory to another."""
        return self._all("copy")

    def put(self) -> Span:
        return self._all("put")

    def get(self) -> Span:
        """Ends the benchmark where a byte is wrong."""
        span = self._all("get")
        self._each("check")
        return span

    def forget(self) -> None:
        """What was prepared need not be kept any longer."""
        self._each("forget")

    def _all(self, what: str) -> Span:
        answers = self._each(what)
        begin, end = min(answer["begin"] for answer in answers), max(answer["end"] for answer in answers)
        return Span(begin, end, len(answers) * self.pages, sum(answer["from_disk"] for answer in answers))

    def _each(self, what: str) -> list[dict[str, Any]]:
        for helper in self._helpers:
            helper.order(do=what)
        return [helper.answer() for helper in self._helpers]


def command(python: str, pages: int, page_bytes: int, kind: str, *where: str) -> list[str]:
    """What starts one client."""
    return [python, "-m", "tiers.client", str(pages), str(page_bytes), kind, *where]


def attached(children: Children, stack: Stack, node: str, pages: int, page_bytes: int, count: int = 1) -> Clients:
    """Clients of one tier."""
    where = str(stack.folder / node)
    start = [command(sys.executable, pages, page_bytes, "pegaflow", f"{node}{children.count + n}", where) for n in range(count)]
    return Clients([children.helper(one) for one in start], pages)
