"""Whatever the cut, the events are the same; whatever the bytes, the parser gives events or says StreamBroken."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.sse import EventParser, StreamBroken

lines = st.text(alphabet=st.characters(exclude_characters="\r\n", categories=None, exclude_categories=["Cs"]), max_size=20)
events = st.lists(st.lists(lines, min_size=1, max_size=3), max_size=5)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


def encode(parts: list[list[str]], end: bytes, space: bytes) -> bytes:
    # A value that begins with a space needs the optional one in front of it.
    return b"".join(
        b"".join(b"data:" + (b" " if line.startswith(" ") else space) + line.encode() + end for line in event) + end
        for event in parts
    )


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(borders)]


@settings(deadline=None)  # the machine may be busy
@given(events, ends, st.sampled_from([b"", b" "]), st.lists(st.integers(0, 10_000), max_size=10))
def test_round_trip_with_any_cut(parts: list[list[str]], end: bytes, space: bytes, cuts: list[int]) -> None:
    parser = EventParser()
    seen = [data for chunk in cut(encode(parts, end, space), cuts) for data in parser.feed(chunk)]
    assert seen == ["\n".join(event) for event in parts]
    assert parser.clean


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"x", b"\xc3", b"\xb6"]), max_size=40).map(b"".join),
    st.lists(st.integers(0, 10_000), max_size=10),
)
def test_any_bytes_give_the_same_whatever_the_cut(stream: bytes, cuts: list[int]) -> None:
    def outcome(chunks: list[bytes]) -> tuple[list[str], bool]:
        parser, seen = EventParser(), []
        try:
            for chunk in chunks:
                seen += parser.feed(chunk)
        except StreamBroken:
            return [], True
        return seen, False

    assert outcome(cut(stream, cuts)) == outcome([stream])
