"""What a policy is worth: traces of prompts through a pool that is too small, with hit rates printed (pytest -s).

Prompts are chains of pages: a hot prefix (a system prompt, a document) shared by many, then pages of their own. Scans are cold
prompts that nobody sends again; they are not counted. A hit is a page that a lookup finds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.eviction.policy import POLICIES
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

NAME = b"n" * 16
POOL = 1000
WARM = 300
SCAN = 1
SUM = [b"s" * 16]

Prompt = list[bytes]
Trace = Callable[[random.Random, int, float], Iterator[Prompt]]


def key(*parts: int) -> bytes:
    return NAME + b"".join(part.to_bytes(8, "big") for part in parts).ljust(32, b"\0")


def chat(rng: random.Random, prompts: int, scan: float) -> Iterator[Prompt]:
    """40 prefixes of 20 pages, a few of them asked for most of the time; `scan`: the share of cold prompts of 30 pages."""
    for number in range(prompts):
        if rng.random() < scan:
            yield [key(SCAN, number, page) for page in range(30)]
            continue
        prefix = min(int(rng.paretovariate(0.8)) - 1, 39)
        yield [key(2, prefix, page) for page in range(20)] + [key(3, number, page) for page in range(6)]


def turns(rng: random.Random, prompts: int, scan: float) -> Iterator[Prompt]:
    """Conversations that grow by 8 pages a turn and end after some turns, between scans."""
    open_ones: list[tuple[int, int]] = []
    for number in range(prompts):
        if rng.random() < scan:
            yield [key(SCAN, number, page) for page in range(30)]
        elif open_ones and rng.random() < 0.85:
            at = rng.randrange(len(open_ones))
            name, length = open_ones[at]
            open_ones[at] = (name, length + 8)
            if length > 60:
                del open_ones[at]
            yield [key(4, name, page) for page in range(length + 8)]
        else:
            open_ones.append((number, 8))
            yield [key(4, number, page) for page in range(8)]


def hit_rate(policy: str, trace: Iterator[Prompt]) -> float:
    counts: Counter[str] = Counter()
    out: list[object] = []
    pages = Pages(POOL, out, counts, SpaceOptions(policy=policy))  # type: ignore[arg-type]
    pages.allocator.grow(POOL)
    pages.space.shares.active = frozenset([NAME])
    hits = asked = 0
    for number, prompt in enumerate(trace):
        pages.space.turn += 1
        pages.space.now += 1.0
        found: list[Page] = []
        for one in prompt:
            page = pages.index.get(one)
            if page is None:
                break
            found.append(page)
        if number > WARM and prompt[0] != key(SCAN, number, 0):
            hits += len(found)
            asked += len(prompt)
        pages.space.touch(found)
        parent = found[-1] if found else None
        for one in prompt[len(found) :]:
            page = pages.index.get(one) or pages.reserve(one, PageState.PENDING, (GRANULE,), f"r{number}", 1, parent)
            if page is None:
                break
            if page.state is PageState.PENDING:
                page.unwritten.clear()
                pages.seal(page, SUM)
            parent = page
        out.clear()
        pages.flush()
    pages.validate()
    return hits / asked


TRACES: list[tuple[Trace, float, str]] = [
    (chat, 0.0, ""),
    (chat, 0.8, "s3fifo"),  # a scan passes through its small queue
    (turns, 0.5, "lru"),  # what grows is used again soon, or never: recency says more than frequency
]


@pytest.mark.parametrize(("trace", "scan", "better"), TRACES, ids=["chat", "chat and scans", "turns and scans"])
def test_hit_rates(trace: Trace, scan: float, better: str) -> None:
    """Neither is best everywhere, so the older and simpler one is the default."""
    rates = {policy: hit_rate(policy, trace(random.Random(7), 1000, scan)) for policy in POLICIES}
    print(f"\n{trace.__name__}, {scan:.0%} scans: " + ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items()))
    assert min(rates.values()) > 0.1
    assert not better or rates[better] > 1.1 * min(rates.values())
    assert better or max(rates.values()) < 1.1 * min(rates.values())
