"""The scanner agrees with searching the whole text after each token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.seam import StopScanner, crosses_seam

words = st.text(alphabet="ab", max_size=4)
stops_ = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3)


def plainly(stops: list[str], tokens: list[str], keep: bool, least: int) -> tuple[str, str | None, int]:
    """The text, the stop string and the number of tokens used, by the definition."""
    for count in range(1, len(tokens) + 1):
        text = "".join(tokens[:count])
        free = len("".join(tokens[:least]))
        before = max(len("".join(tokens[: count - 1])), free)
        if count <= least:
            continue
        ends = [
            (start + len(stop), order, start)
            for order, stop in enumerate(stops)
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > before
        ]
        if ends:
            end, order, start = min(ends)
            return text[: end if keep else start], stops[order], count
    return "".join(tokens), None, len(tokens)


@settings(deadline=None)  # the machine may be busy
@given(stops_, st.lists(words, min_size=1, max_size=8), st.booleans(), st.integers(0, 4))
def test_the_scanner_finds_what_is_there(stops: list[str], tokens: list[str], keep: bool, least: int) -> None:
    scanner = StopScanner(stops, keep_stop=keep, min_tokens=least)
    sent, found, used = "", None, 0
    for token in tokens:
        text, found = scanner.feed(token, 1)
        sent += text
        used += 1
        if found is not None:
            break
    else:
        sent += scanner.finish()
    assert (sent, found, used) == plainly(stops, tokens, keep, least)


@settings(deadline=None)  # the machine may be busy
@given(st.text(alphabet="ab", max_size=5), stops_)
def test_crossing_is_what_its_name_says(text: str, stops: list[str]) -> None:
    could = any(
        (text + rest).find(stop, at) == at
        for stop in stops
        for at in range(len(text))
        for rest in [stop[len(text) - at :]]
        if at + len(stop) > len(text)
    )
    assert crosses_seam(text, stops) is could
