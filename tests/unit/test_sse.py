"""The event-stream parser, by examples from the WHATWG standard and by what engines send."""

from __future__ import annotations

import pytest
from pegaflow.services.router.sse import EventParser, StreamBroken


def parse(*chunks: bytes) -> list[str]:
    parser = EventParser()
    return [data for chunk in chunks for data in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data:one\n\n", ["one"]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b": comment\n\ndata: x\n\n", ["x"]),
        (b"event: m\nid: 3\nretry: 5\ndata: x\n\n", ["x"]),
        (b"database: x\n\n", []),
        (b"\xef\xbb\xbfdata: x\n\n", ["x"]),
        (b"\n\n\ndata: x\n\n", ["x"]),
        (b"data: unfinished\n", []),
        (b"data: [DONE]\n\n", ["[DONE]"]),
        ("data: wörld \u2028 \u00a0\n\n".encode(), ["wörld \u2028 \u00a0"]),
    ],
)
def test_examples(stream: bytes, data: list[str]) -> None:
    assert parse(stream) == data
    assert parse(*(stream[at : at + 1] for at in range(len(stream)))) == data


def test_a_cr_at_the_end_of_a_chunk_belongs_to_the_lf_of_the_next() -> None:
    assert parse(b"data: a\r", b"\n\r", b"\n") == ["a"]
    assert parse(b"data: a\r", b"data: b\r", b"\r") == ["a\nb"]
    assert parse(b"data: a\r", b"", b"\n\n") == ["a"]


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert not parser.clean
    assert parser.feed(b"\nda") == ["a"]
    assert not parser.clean
    assert parser.feed(b"ta: b\n\n") == ["b"]
    assert parser.clean


def test_a_line_of_a_megabyte() -> None:
    line = b"data: [" + b"1234567," * 131072 + b"1]"
    parser = EventParser()
    for at in range(0, len(line), 65536):
        assert parser.feed(line[at : at + 65536]) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event) == len(line) - 6


def test_bounds_and_encoding() -> None:
    with pytest.raises(StreamBroken, match="exceeds 10 bytes"):
        EventParser(limit=10).feed(b"data: 0123456789")
    endless = EventParser(limit=10)
    with pytest.raises(StreamBroken, match="exceeds 10 bytes"):
        for _ in range(10):
            endless.feed(b"data: 1\n")
    with pytest.raises(StreamBroken, match="UTF-8"):
        EventParser().feed(b"data: \xff\n\n")
