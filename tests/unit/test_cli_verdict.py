"""What the tool concludes from what tiers say, and how it names the pages of a prompt."""

from __future__ import annotations

import argparse
import asyncio
import builtins
import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.keys import HashAlgorithm, none_hash
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.inspection import NamespaceList, Step
from pegaflow.services.cli import catalogue, prompt
from pegaflow.services.cli.catalogue import Short
from pegaflow.services.cli.departed import Departed, departed, last_life, missing
from pegaflow.services.cli.listing import Wrong
from pegaflow.services.cli.namespaces import Namespace, differing, merged
from pegaflow.services.cli.sight import Copy, Moment
from pegaflow.services.cli.silence import explained
from pegaflow.services.cli.target import UsageError
from pegaflow.services.cli.unwell import unwell
from pegaflow.services.cli.verdict import Absent, Cause, Evidence, Other, verdict

DEAD = Absent("b", "dead", 12_000, 40)
FACTORS = {
    "model": "m",
    "kv_dtype": "auto",
    "block_size": "16",
    "hash_block_size": "16",
    "hash_algorithm": "sha256_cbor",
    "none_hash": none_hash(HashAlgorithm.SHA256_CBOR).hex(),
}


def copy(state: str, node: str = "a", level: str = "memory", engine: str = "p", request: str = "r1") -> Copy:
    return Copy(node, state, level, True, False, False, 64, 1, 0, 0, 0, 5, None, [], engine, request)


def step(what: Step, who: str = "", node: str = "a", ago_ms: int = 5000) -> Moment:
    return Moment(node, ago_ms, what, who)


SAVED = [step(Step.GRANTED, "p r1", ago_ms=9000), step(Step.SEALED, ago_ms=8900)]


@pytest.mark.parametrize(
    ("evidence", "cause", "text"),
    [
        (Evidence([copy("sealed", level="memory+disk")], SAVED), Cause.THERE, "on a (memory+disk), sealed 8.9s ago"),
        (Evidence([copy("pending")], SAVED[:1]), Cause.PENDING, "on a, by p for request r1, granted 9.0s ago"),
        (Evidence([copy("fetching", engine="")]), Cause.PENDING, "on its way: on a"),
        (Evidence([copy("pending"), copy("sealed", "c")]), Cause.THERE, "on c"),
        (Evidence([copy("stale")], SAVED[:1]), Cause.STALE, "an engine that is silent"),
        (
            Evidence([], [*SAVED, step(Step.EVICTED, "room: for q r9")]),
            Cause.EVICTED,
            "evicted from memory on a 5.0s ago (room: for q r9)",
        ),
        (
            Evidence([], [*SAVED, step(Step.EVICTED, "watermark"), step(Step.DISK_EVICTED, ago_ms=1000)]),
            Cause.EVICTED,
            "from disk",
        ),
        (Evidence([], [*SAVED, step(Step.BAD_CHECKSUM, "memory")]), Cause.DROPPED, "bad checksum on a"),
        (Evidence([], [*SAVED, step(Step.DISK_LOST, "io_error")]), Cause.DROPPED, "lost on disk on a 5.0s ago (io_error)"),
        (Evidence([], [*SAVED[:1], step(Step.ABANDONED, "p its process died")]), Cause.ABANDONED, "(p its process died)"),
        (Evidence([], [step(Step.NO_SPACE, "p r1")]), Cause.NO_SPACE, "no space on a"),
        (Evidence([], [step(Step.REFUSED, "p r1")]), Cause.REFUSED, "refused on a"),
        (Evidence([], [step(Step.FETCH_FAILED, "b deadline")]), Cause.FETCH_FAILED, "from b 5.0s ago (deadline)"),
        (Evidence([], [step(Step.FETCH_FAILED, "b deadline")], absent=[DEAD]), Cause.OWNER_DEAD, "node b fell silent 12.0s ago"),
        (
            Evidence([], [*SAVED, step(Step.EVICTED, "quota"), step(Step.FETCH_FAILED, "a gone", "c", 10)]),
            Cause.EVICTED,
            "(quota)",
        ),
        (Evidence(absent=[DEAD]), Cause.OWNER_DEAD, "with 40 pages"),
        (Evidence(absent=[Absent("b", "dead", 1, 0)]), Cause.NEVER_SAVED, "node b fell silent"),
        (Evidence(absent=[Absent("b", "replaced", 900, None)]), Cause.NEVER_SAVED, "node b was restarted 0.9s ago"),
        (Evidence(absent=[Absent("b", "deadline", None, None)]), Cause.OWNER_DEAD, "does not answer: deadline"),
        (Evidence(others=[Other("x", "dtype", False), Other("y", "kv_dtype", True)]), Cause.OTHER_FINGERPRINT, "y: kv_dtype"),
        (Evidence(others=[Other("x", "none_hash", None)]), Cause.OTHER_FINGERPRINT, "never saved under this fingerprint"),
        (Evidence(others=[Other("x", "model", False)], reaches_ms={"a": 90_000}), Cause.NEVER_SAVED, "(a: 1m30s)"),
        (Evidence(), Cause.NEVER_SAVED, "no tier answers"),
    ],
    ids=lambda value: str(value) if isinstance(value, Cause) else "",
)
def test_what_is_concluded(evidence: Evidence, cause: Cause, text: str) -> None:
    found = verdict(evidence)
    assert found.cause is cause and text in found.text


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ([], Cause.NEVER_SAVED),
        ([*SAVED, step(Step.EVICTED, "watermark")], Cause.EVICTED),
        ([step(Step.FETCH_FAILED, "b deadline")], Cause.FETCH_FAILED),
        (SAVED, Cause.THERE),  # it came too late
    ],
)
def test_what_a_request_has_saved_itself_is_no_reason_why_it_missed(before: list[Moment], cause: Cause) -> None:
    own = [step(Step.GRANTED, "p r2", ago_ms=900), step(Step.SEALED, ago_ms=800)]
    now = Evidence([copy("sealed", request="r2")], [*before, *own])
    assert verdict(now).cause is Cause.THERE
    assert verdict(now.before("p r2")).cause is cause
    assert now.before("p r") is now and now.before("q r2") is now


def test_every_end_of_a_page_has_a_cause() -> None:
    """A step that leaves nothing behind must not read as if it had never been."""
    leave = set(Step) - {
        *(Step.GRANTED, Step.SEALED, Step.DUPLICATE, Step.STALE, Step.DISK_WRITTEN, Step.DISK_READ, Step.FETCHED),
        *(Step.ADOPTED, Step.DISK_FOUND),
    }
    for one in leave:
        assert verdict(Evidence([], [step(one, "b x")])).cause is not Cause.NEVER_SAVED, one


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["[1, 2, 3]", '{"prompt_token_ids": [1, 2, 3], "text": "x"}', '{"ids": [1,2,3]}', "1 2 3\n", "1,2,\n3", "1\n2\n3", "[1 2 3]"],
)
def test_ids_in_any_layout(text: str) -> None:
    assert prompt.parse(text) == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["", "[]", "one two", "1.5", "[1, true]", "[-1]", '{"text": "1"}', "[4294967296]", '["1"]', "[[1]]x"]
)
def test_what_are_no_ids(text: str) -> None:
    with pytest.raises(UsageError):
        prompt.parse(text)


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    prompt.add_options(parser, required=False)
    return parser.parse_args(argv)


def test_ids_come_from_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ids").write_text("7 8")
    assert prompt.ids(options("--tokens", str(tmp_path / "ids"))) == [7, 8]
    monkeypatch.setattr(sys, "stdin", io.StringIO("[9]"))
    assert prompt.ids(options("--tokens", "-")) == [9]
    with pytest.raises(UsageError, match="No such file"):
        prompt.ids(options("--tokens", str(tmp_path / "none")))


def test_a_text_needs_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--model"):
        prompt.ids(options("--text", "hello"))
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        prompt.ids(options("--text", "hello", "--model", str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        prompt.ids(options("--text", "hello", "--model", str(tmp_path)))


def test_a_text_is_cut_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    vocabulary = {"hello": 5, "you": 6, "?": 0}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}})
    )
    assert prompt.ids(options("--text", "hello you", "--model", str(tmp_path))) == [5, 6]


# --- fingerprints -----------------------------------------------------------------------------------------------------

F, G = b"f" * 16, b"g" * 16


def known(**factors: str) -> Namespace:
    return Namespace(F, {**FACTORS, **factors})


def test_pages_are_named_as_the_tiers_say() -> None:
    schemes = prompt.chosen(options(), {F: known()})
    blocks = prompt.blocks(schemes[F], list(range(35)))
    assert [(block.number, block.start, block.end, block.tail) for block in blocks] == [
        (0, 0, 16, False),
        (1, 16, 32, False),
        (2, 32, 35, True),
    ]
    assert all(block.key.startswith(F) and len(block.key) == 48 for block in blocks)
    assert prompt.chosen(options("--fingerprint", F.hex()[:6]), {F: known(), G: known()}).keys() == {F}
    assert prompt.chosen(options(), {F: known(), G: known(hash_algorithm="sha256/pickle5")}).keys() == {F}


def test_pages_are_named_as_the_command_line_says_where_no_tier_knows() -> None:
    told = options("--fingerprint", G.hex(), "--block-size", "16", "--hash", "sha256_cbor")
    assert prompt.chosen(told, {})[G].keys(list(range(16)))[0][16:] == known().scheme.keys(list(range(16)))[0][16:]  # type: ignore[union-attr]
    seeded = options("--fingerprint", G.hex(), "--block-size", "16", "--hash", "xxhash_cbor", "--seed", "0")
    assert prompt.chosen(seeded, {})[G].none_hash.hex() == "1ebe36576dcb573f26b99533a20aaeca"


@pytest.mark.parametrize(
    ("argv", "namespaces", "text"),
    [
        ([], {}, "no tier knows a fingerprint: say --fingerprint"),
        (["--fingerprint", "ab"], {F: known()}, "begins with ab"),
        (["--fingerprint", "zz"], {F: known()}, "hexadecimal"),
        ([], {F: Namespace(F)}, "factors are not known"),
        ([], {F: known(hash_algorithm="sha256/pickle5")}, "pickled"),
        (["--block-size", "16", "--hash", "sha256_cbor"], {}, "whole --fingerprint"),
        (["--block-size", "16", "--hash", "xxhash_cbor"], {F: Namespace(F)}, "say --seed"),
        (["--block-size", "-1", "--hash", "sha256_cbor"], {F: Namespace(F)}, "above 0"),
    ],
)
def test_why_pages_cannot_be_named(argv: list[str], namespaces: dict[bytes, Namespace], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        prompt.chosen(options(*argv), namespaces)


def test_fingerprints_of_several_tiers_are_one_list() -> None:
    lines = "\n".join(f"{name}={value}" for name, value in FACTORS.items())
    one = NamespaceList([F.hex(), "no hex"], ["", ""], [lines, ""], u64s([3, 0]), u64s([30, 0]), u64s([1, 0]))
    two = NamespaceList([F.hex(), G.hex()], ["p, q", "r"], ["", "model=other=x"], u64s([4, 9]), u64s([40, 90]), u64s([0, 0]))
    found = merged([("a", one), ("b", two)])
    assert list(found) == [G, F]
    assert (found[F].engines, found[F].pages, found[F].used_bytes, found[F].disk) == (["p on b", "q on b"], 7, 70, 1)
    assert found[F].factors == FACTORS and found[G].factors == {"model": "other=x"}
    assert "model (here m, there other=x)" in differing(found[F].factors, found[G].factors)
    assert differing({}, FACTORS) == ""


# --- the two sides of a catalogue -------------------------------------------------------------------------------------

MINE = Short(7, 50, "aa", 3, 1, False)


@pytest.mark.parametrize(
    ("theirs", "judged"),
    [
        (MINE, "same"),
        (MINE._replace(seq=49), "same"),
        (MINE._replace(digest="bb"), "differs"),
        (MINE._replace(digest="bb", seq=49), "moving"),
        (MINE._replace(epoch=8), "other_life"),
        (MINE._replace(syncing=True), "syncing"),
        (None, "unknown"),
    ],
)
def test_digests_are_compared_at_one_message_only(theirs: Short | None, judged: str) -> None:
    (row,) = catalogue.compared({"a": MINE}, [("m", {"a": theirs} if theirs else {})])
    assert (row["verdict"], row["sealed"], row["metaserver"]) == (judged, 3, "m")
    (alone,) = catalogue.compared({"a": MINE}, [])
    assert alone["verdict"] == "alone"


def test_differences_key_by_key() -> None:
    there = {b"1": (2, 0, 64), b"2": (2, 1, 64), b"3": (1, 0, 64)}
    found = catalogue.differences("a", "m", there, {b"1": (2, 0, 64), b"2": (2, 0, 64)})
    assert [(row["key"], row["tier_level"], row["believed_state"], row["believed_level"]) for row in found] == [
        (b"2".hex(), "disk", "sealed", "memory"),
        (b"3".hex(), "memory", "gone", "memory"),
    ]


# --- nodes that are gone ----------------------------------------------------------------------------------------------


def life(node: str, reason: str, ago_ms: Any = 5000, **changes: Any) -> dict[str, Any]:
    return {"node": node, "epoch": "07", "reason": reason, "ago_ms": ago_ms, "sealed": 3} | changes


def test_a_node_is_missed_if_it_fell_silent_not_long_ago_and_is_not_back() -> None:
    lives = [
        life("a", "dead"),
        life("b", "bye"),
        life("c", "dead"),
        life("c", "bye"),
        life("d", "dead", 99_000),
        life("e", "dead"),
    ]
    assert missing({"left": lives}, {"e"}, 60_000) == [Departed("a", "07", "dead", 5000, 3)]


def test_how_the_last_life_of_a_node_ended() -> None:
    one, two = [life("a", "bye", 9000), life("a", "replaced", 5000)], [life("a", "replaced", 4900), life("b", "dead", 10)]
    told: list[dict[str, Any]] = [{"left": one}, {"left": two}, {"left": None}, {}]
    assert last_life(told, "a", "08") == {"reason": "replaced", "ago_ms": 4900}
    assert last_life(told, "b", "07") == {"reason": "silence", "ago_ms": 10}, "the same life came back"
    assert last_life(told, "c", "07") is None


def test_engines_that_are_not_well() -> None:
    def member(role: str, pid: int, silent_ms: int) -> dict[str, Any]:
        return {"role": role, "rank": 0, "pid": pid, "silent_ms": silent_ms}

    tier = {
        "sessions": [
            {"engine": "well", "stale": False, "complete": True, "members": [member("scheduler", 1, 20)]},
            {"engine": "p", "stale": True, "members": [member("scheduler", 2, 40), member("rank", 3, 5200)]},
            {"engine": "d", "stale": False, "complete": False, "members": [member("rank", 4, 5)]},
        ]
    }
    why = "its process is stopped, hangs or gets no CPU"
    assert unwell("tier", "a", tier) == [
        Wrong("engine", "p", "", "silent", f"attached to a: silent for 5.2s: {why} (rank 0: 3)"),
        Wrong("engine", "d", "", "not_ready", "attached to a: incomplete: it has only rank 0: 4"),
    ]
    router = {
        "engines": [
            {"role": "prefill", "url": "http://p:1", "healthy": False, "why": "nobody listens there"},
            {"role": "decode", "url": "http://d:1", "healthy": True, "why": ""},
            {"role": "decode", "url": "http://d:2", "healthy": None},
        ]
    }
    assert unwell("router", "r", router) == [
        Wrong("engine", "prefill", "http://p:1", "unhealthy", "router r says: nobody listens there")
    ]
    for junk in ({}, {"sessions": 7, "engines": [3]}, {"sessions": [{"stale": True, "members": [{"silent_ms": "x"}, 7]}]}):
        for service in ("tier", "router", "metaserver"):
            assert all(isinstance(one.text, str) for one in unwell(service, "x", junk))


@pytest.mark.parametrize("left", [None, 7, {}, [7, {}], [life("a", "dead", sealed="x")], [life("a", "dead", ago_ms=None)]])
def test_a_document_of_another_form_names_no_node(left: Any) -> None:
    assert departed({"left": left}) == departed({}) == []


def test_what_the_endpoint_of_a_silent_service_shows() -> None:
    """A socket that is bound and does not listen; one whose process takes connections and says nothing; no endpoint at all."""
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as stopped:
        unused.bind(("127.0.0.1", 0))
        at = [f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in (unused, stopped)]
        told = asyncio.run(explained([Wrong("tier", "a", endpoint, "deadline", "no answer") for endpoint in [*at, ""]]))
    assert [one.text for one in told] == [
        "no answer; nobody listens there: the process is not running",
        "no answer; somebody listens there and says nothing: the process is stopped, or hangs",
        "no answer",
    ]
