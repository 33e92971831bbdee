"""Stop strings across the seam of two engines."""

from __future__ import annotations

import pytest
from pegaflow.services.router.seam import StopScanner, crosses_seam


@pytest.mark.parametrize(
    ("text", "stops", "crosses"),
    [
        ("Hel", ["lo"], True),
        ("Hel", ["Hello"], True),
        ("Hel", ["Hel"], False),
        ("Hel", ["xel"], False),
        ("\n", ["\n\n"], True),
        ("a", ["b", "ab"], True),
        ("a", [], False),
        ("aab", ["ab"], False),
        ("aa", ["aab"], True),
    ],
)
def test_whether_a_stop_string_may_begin_in_the_first_token(text: str, stops: list[str], crosses: bool) -> None:
    assert crosses_seam(text, stops) is crosses


def run(stops: list[str], tokens: list[str], *, keep: bool = False, least: int = 0) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops, keep_stop=keep, min_tokens=least)
    sent = []
    for token in tokens:
        text, stop = scanner.feed(token, 1)
        sent.append(text)
        if stop is not None:
            return sent, stop
    sent[-1] += scanner.finish()
    return sent, None


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    assert run(["abc"], ["a", "b", "x", "y"]) == (["", "", "a", "bxy"], None)


def test_a_match_ends_the_text_before_it_or_with_it() -> None:
    assert run(["abc"], ["xa", "b", "cz"]) == (["", "x", ""], "abc")
    assert run(["abc"], ["xa", "b", "cz"], keep=True) == (["xa", "b", "c"], "abc")


def test_the_match_that_ends_first_wins_then_the_first_in_the_list() -> None:
    assert run(["bcd", "bc"], ["a", "bcd"])[1] == "bc"
    assert run(["cd", "bcd"], ["a", "bcd"])[1] == "cd"


def test_matches_within_the_first_min_tokens_do_not_count() -> None:
    assert run(["ab"], ["a", "b", "c"], least=2) == (["", "a", "bc"], None)
    assert run(["ab"], ["a", "b", "ab"], least=2)[1] == "ab"
    # A match that begins early and ends late does.
    assert run(["bc"], ["a", "b", "c"], least=2)[1] == "bc"


def test_empty_tokens_count_as_tokens() -> None:
    assert run(["b"], ["a", "", "b"], least=2) == (["a", "", ""], "b")
