"""The prompts of scripts/bench/accuracy: needles in much text, and short ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from accuracy_parts import answer

from bench.needles.prompts import CHUNK, DEPTHS, SHORT_LENGTHS, Prompt, check, needles, secret, shorts
from bench.needles.score import (
    told,
)
from bench.needles.texts import Doc, docs, docs_of, manual, manual_of
from deployment.cases import BLOCK_SIZE


class Words:
    """A tokenizer: an id for each word, number, sign and gap."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in re.findall(r"\w+|\s+|[^\w\s]", text)]

    def decode(self, ids: Sequence[int]) -> str:
        words = list(self._ids)
        return "".join(words[i] for i in ids)


HAY = " ".join(f"Sheep {n} eats grass." for n in range(3000))
DOCS = [Doc(f"farm.animal{n}", " ".join(f"word{n}x{i}" for i in range(80))) for n in range(40)]


def made(thousands: Sequence[int] = (1, 2), keys: int = 2) -> list[Prompt]:
    return needles(Words().encode, HAY, thousands, DEPTHS, keys)


def test_a_needle_is_whole_chunks_and_one_id_and_its_secret_stands_where_it_should() -> None:
    words = Words()
    prompts = needles(words.encode, HAY, (1, 2), DEPTHS, 2)
    assert len(prompts) == 2 * len(DEPTHS) * 2
    for one in prompts:
        assert len(one.ids) == int(one.group.removeprefix("needle ").removesuffix("k")) * CHUNK + 1
        text = words.decode(one.ids)
        assert text.count(one.secret) == 1 and f"is {one.secret}." in text
        assert text.endswith(" is") and text.index(one.secret) / len(text) == pytest.approx(one.depth / 100, abs=0.06)
    assert {one.secret for one in prompts} == {secret(0), secret(1)} and secret(0) != secret(1)


def test_prompts_are_the_same_each_time_and_none_begins_like_another() -> None:
    prompts = [*made(), *shorts(Words().encode, DOCS, 16)]
    assert prompts == [*made(), *shorts(Words().encode, DOCS, 16)]
    check(prompts)
    twin = prompts[0]._replace(name="twin", ids=(*prompts[0].ids[:BLOCK_SIZE], 1, 2, 3))
    with pytest.raises(ValueError, match="twin begins like needle 1k"):
        check([*prompts, twin])


def test_secrets_are_five_digits_and_differ() -> None:
    found = [secret(key) for key in range(8)]
    assert len(set(found)) == 8 and all(len(one) == 5 and one.isdigit() for one in found)


def test_what_has_no_room_or_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        needles(Words().encode, HAY, (0,), DEPTHS, 1)
    with pytest.raises(ValueError, match="no room"):
        needles(Words().encode, "", (1,), DEPTHS, 1)
    with pytest.raises(ValueError, match="9 keys"):
        made(keys=9)


def test_short_prompts_have_their_lengths_half_of_them_are_questions() -> None:
    prompts = shorts(Words().encode, DOCS, 16)
    assert [len(one.ids) for one in prompts] == [length for length in SHORT_LENGTHS for _ in range(4)]
    assert sum(one.name.startswith("question") for one in prompts) == 8
    assert not any(told(one, answer(text="anything")) for one in prompts)
    with pytest.raises(ValueError, match="no docstring is left"):
        shorts(Words().encode, DOCS[:7], 16)


def test_docstrings_with_too_little_text_or_a_known_beginning_are_passed_over() -> None:
    short, good = Doc("a.b", "only this"), DOCS[0]
    (one,) = shorts(Words().encode, [short, good], 1)
    assert good.name in one.name
    with pytest.raises(ValueError):
        shorts(Words().encode, [good, *[good] * 20], 5)  # the fifth is a question of the first one's length again


def test_text_is_read_from_sources() -> None:
    assert manual_of("x = 1\ntopics = {'b': 'two\\n  words', 'a': 'first'}\n") == "first two words"
    with pytest.raises(ValueError):
        manual_of("x = 1")
    source = """
def f():
    "Does f."
def _g():
    "no"
class C:
    "A  C."
    def m(self):
        '''Does
        m.'''
    def n(self): ...
"""
    assert docs_of("mod", source) == [Doc("mod.f", "Does f."), Doc("mod.C", "A C."), Doc("mod.C.m", "Does m.")]


def test_the_standard_library_has_enough_of_it() -> None:
    assert len(manual()) > 300_000
    long = [doc for doc in docs() if len(doc.text) > 400]
    assert len(long) > 100 and len({doc.name for doc in long}) > 100
