"""Which page continues which, pure: a page's parent holds the tokens before it, as vLLM's chained block hashes do.

A page without the pages before it cannot be found by a lookup, so children go before their parents (docs/protocol.md 2.5).
The links are learnt from the order of keys in intents and lookups. They are hints: a missing one costs a worse choice of victims.

    parent ─child─▶ first child ⇄ next child ⇄ …        (left, right)
"""

from __future__ import annotations

from collections.abc import Iterator

from pegaflow.services.tier.page import Page


def link(page: Page, parent: Page) -> bool:
    """`page` continues `parent`. Refused (False) unless the page is alone: whatever clients say, there can be no circle."""
    if page.parent is not None or page.child is not None or page is parent or page.key[:16] != parent.key[:16]:
        return False
    _enter(page, parent)
    return True


def _enter(page: Page, parent: Page) -> None:
    page.parent = parent
    page.left, page.right = None, parent.child
    if parent.child is not None:
        parent.child.left = page
    parent.child = page


def leave(page: Page) -> Page | None:
    """The page is gone: its children have no parent any more. Returns the page's parent if that has no child left."""
    if page.child is not None:
        for child in list(children(page)):
            _part(child)
    parent = page.parent
    if parent is None:
        return None
    _part(page)
    return parent if parent.child is None else None


def _part(page: Page) -> None:
    assert page.parent is not None
    if page.left is not None:
        page.left.right = page.right
    else:
        page.parent.child = page.right
    if page.right is not None:
        page.right.left = page.left
    page.parent = page.left = page.right = None


def replace(old: Page, new: Page) -> None:
    """Another copy of the same key takes the old one's place in its chain; the new one must be alone."""
    parent = old.parent
    for child in list(children(old)):
        _part(child)
        _enter(child, new)
    if parent is not None:
        _part(old)
        _enter(new, parent)


def children(page: Page) -> Iterator[Page]:
    child = page.child
    while child is not None:
        yield child
        child = child.right
