"""What a policy of eviction is, and which there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pegaflow.services.tier.eviction.lru import Lru
from pegaflow.services.tier.eviction.s3fifo import S3Fifo
from pegaflow.services.tier.page import Page


class Policy(Protocol):
    """An order among the pages that may go. What may not (leased, kept, a parent of pages that are there) is not in it.

    Every call costs constant time, amortised; a page that is held costs nothing while it is.
    """

    def admit(self, page: Page) -> None:
        """A new page is here; it is held until it is released."""

    def release(self, page: Page) -> None:
        """The page may go from now on. Idempotent."""

    def hold(self, page: Page) -> None:
        """The page may not go for the time being. Idempotent."""

    def touch(self, page: Page, turn: int) -> None:
        """The page was used, in this turn of the tier; the caller releases or holds it next."""

    def remove(self, page: Page) -> None:
        """The page has left for good."""

    def victim(self) -> Page | None:
        """Who goes next; it stays in until it is held or removed."""

    def validate(self) -> None: ...


POLICIES: dict[str, Callable[[], Policy]] = {"lru": Lru, "s3fifo": S3Fifo}
