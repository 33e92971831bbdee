"""The prompts: a pass word hidden in much text, and short questions and beginnings. Pure: text and tokenizer come in.

Lengths are chosen so that who answers makes no difference to how anything is computed. `CHUNK` ids are computed in a step at
most, and a needle's prompt is whole chunks and one id: alone, vLLM computes its last position in a step of its own; so does a P
that loads the rest from its tier, and a D that loads it from another. (What is left for short prompts, path.py says.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from deployment.cases import BLOCK_SIZE

from .texts import Doc

Encode = Callable[[str], list[int]]
Make = Callable[[Encode, Doc, int], tuple[int, ...] | None]

CHUNK: Final = 1024
DEPTHS: Final = (10, 50, 90)
HOUSES: Final = ("harbour", "library", "orchard", "station", "brewery", "lighthouse", "post office", "observatory")
"""Whose pass word; as many keys as there can be."""
SHORT_LENGTHS: Final = (33, 65, 97, 50)
"""All but one kind are blocks and one id; that one has a tail of some rows."""
NEEDLE_TOKENS, SHORT_TOKENS = 12, 16
LEAST_EXCERPT: Final = 4


class Prompt(NamedTuple):
    """`group`: its row in the table, all of one length. `secret`: what a right answer contains; empty: nothing is right or wrong.

    `depth`: where the secret stands, in percent. `tokens`: of the answer, at most.
    """

    name: str
    group: str
    ids: tuple[int, ...]
    secret: str
    depth: int
    tokens: int

    @property
    def pages(self) -> int:
        """The partial one included."""
        return -(-len(self.ids) // BLOCK_SIZE)


def secret(key: int) -> str:
    """Five digits."""
    return str(10_000 + (13_577 + 27_449 * key) % 90_000)


def needles(encode: Encode, text: str, thousands: Sequence[int], depths: Sequence[int], keys: int) -> list[Prompt]:
    """One for each length, depth and key. Raises ValueError when there is no such key or no room."""
    if not 0 <= keys <= len(HOUSES):
        raise ValueError(f"{keys} keys: there are {len(HOUSES)}")
    hay = encode(text)
    found: list[Prompt] = []
    for number, (thousand, key, depth) in enumerate((t, k, d) for t in thousands for k in range(keys) for d in depths):
        house = HOUSES[key]
        # The number makes the first block another one in each prompt: none may find a beginning of its own in a cache.
        head = encode(f"Text {number + 1} of a collection. In one place it tells a pass word.\n\n")
        needle = encode(f"\n\nThe pass word of the {house} is {secret(key)}.\n\n")
        question = encode(f"\n\nQuestion: What is the pass word of the {house}?\nAnswer: The pass word of the {house} is")
        room = thousand * CHUNK + 1 - len(head) - len(needle) - len(question)
        filler = _from(hay, number * 1009, room)
        before = room * depth // 100
        ids = (*head, *filler[:before], *needle, *filler[before:], *question)
        name = f"needle {thousand}k, key {key + 1}, {depth} %"
        found.append(Prompt(name, f"needle {thousand}k", ids, secret(key), depth, NEEDLE_TOKENS))
    return found


def shorts(encode: Encode, docs: Sequence[Doc], count: int) -> list[Prompt]:
    """Half of them questions about an excerpt, half beginnings of a text. Raises ValueError when there is too little text."""
    ahead = iter(docs)
    seen: set[tuple[int, ...]] = set()
    found = []
    for number in range(count):
        length = SHORT_LENGTHS[number % len(SHORT_LENGTHS)]
        kind, make = (("question", _question), ("beginning", _beginning))[number // len(SHORT_LENGTHS) % 2]
        doc, ids = _next(encode, make, ahead, length, seen)
        seen.add(ids[:BLOCK_SIZE])
        found.append(Prompt(f"{kind} {length}, {doc.name}", f"short {length}", ids, "", 0, SHORT_TOKENS))
    return sorted(found, key=lambda prompt: SHORT_LENGTHS.index(len(prompt.ids)))


def check(prompts: Sequence[Prompt]) -> None:
    """Raises ValueError when two begin with the same block: the second would find it in a cache."""
    first: dict[tuple[int, ...], str] = {}
    for prompt in prompts:
        other = first.setdefault(prompt.ids[:BLOCK_SIZE], prompt.name)
        if other != prompt.name:
            raise ValueError(f"{prompt.name} begins like {other}")


def batches(prompts: Sequence[Prompt], pages: int) -> list[list[list[Prompt]]]:
    """Groups of one length, as many as have room together; a group that is too large is divided. In the order that was given."""
    found: list[list[list[Prompt]]] = []
    room = 0
    for prompt in prompts:
        if not found or prompt.pages > room:
            found.append([])
            room = pages
        if not found[-1] or found[-1][-1][0].group != prompt.group:
            found[-1].append([])
        found[-1][-1].append(prompt)
        room -= prompt.pages
    return found


def _next(
    encode: Encode, make: Make, docs: Iterator[Doc], length: int, seen: set[tuple[int, ...]]
) -> tuple[Doc, tuple[int, ...]]:
    for doc in docs:
        ids = make(encode, doc, length)
        if ids is not None and ids[:BLOCK_SIZE] not in seen:
            return doc, ids
    raise ValueError(f"no docstring is left for one more short prompt of {length} ids")


def _question(encode: Encode, doc: Doc, length: int) -> tuple[int, ...] | None:
    """The excerpt is as long as there is room for; None: there is none, or the text is too short."""
    head = encode(f"{doc.name}: ")
    tail = encode(f"\nQuestion: What does {doc.name} do?\nAnswer:")
    text = encode(doc.text)
    room = length - len(head) - len(tail)
    return (*head, *text[:room], *tail) if LEAST_EXCERPT <= room <= len(text) else None


def _beginning(encode: Encode, doc: Doc, length: int) -> tuple[int, ...] | None:
    ids = encode(f"{doc.name}: {doc.text}")
    return tuple(ids[:length]) if len(ids) >= length else None


def _from(ids: Sequence[int], start: int, count: int) -> list[int]:
    """`count` of them from `start` on, around the end."""
    if count < 0 or not ids:
        raise ValueError("the prompt has no room for its needle")
    return [ids[(start + i) % len(ids)] for i in range(count)]
