"""The scheduler half with stand-ins for vLLM's objects and for the bus: keys, pins, intents, claims."""

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from engine_descriptions import plain_engine
from pegaflow.common.keys import HashAlgorithm, block_hash, none_hash, prefix_hashes, tail_hash
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.load_tracker import Load
from pegaflow.connector.options import parse_options
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.session import AttachState, IntentRef, LeaseRef, LookupAnswer, SessionId
from pegaflow.connector.work import RankReport, SaveOrder, StepWork

BLOCK = 16
ALGORITHM = HashAlgorithm.XXHASH_CBOR
NONE = none_hash(ALGORITHM, "0")
FINGERPRINT = b"F" * 16
SESSION = SessionId(1, 1)
LEASE = LeaseRef(SESSION, 77)
ENGINE = plain_engine(BLOCK)


@dataclass
class FakeRequest:
    request_id: str
    prompt_token_ids: list[int] | None
    output: int = 0
    num_computed_tokens: int = 0
    lora_request: Any = None
    cache_salt: str | None = None
    mm_features: list[Any] = field(default_factory=list)
    prompt_embeds: Any = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False
    abort_immediately: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    hash_block: int = BLOCK

    @property
    def ids(self) -> list[int]:
        return [*(self.prompt_token_ids or []), *range(9000, 9000 + self.output)]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or [])

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def block_hashes(self) -> list[bytes]:
        return list(prefix_hashes(ALGORITHM, NONE, self.ids, self.hash_block))


class FakeBlocks:
    """vLLM's pool of blocks: only who references what, and what it would find in its own cache."""

    enable_caching = True

    def __init__(self) -> None:
        self.blocks = [SimpleNamespace(block_id=i, refs=0) for i in range(100)]
        self.cached: set[bytes] = set()
        self.freed: list[int] = []

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.refs += 1

    def free_blocks(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.refs -= 1
            self.freed.append(block.block_id)

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> Any:
        return [object()] if block_hash in self.cached else None

    @property
    def num_gpu_blocks(self) -> int:
        return len(self.blocks)

    def get_num_free_blocks(self) -> int:
        return len(self.blocks) - 1 - len(self.refs())

    def refs(self) -> dict[int, int]:
        return {block.block_id: block.refs for block in self.blocks if block.refs}


class FakeBus:
    def __init__(self) -> None:
        self.current: SessionId | None = SESSION
        self.intents: list[dict[str, Any]] = []
        self.full = False
        self.lookups: list[dict[str, Any]] = []
        self.answers: list[LookupAnswer] = []
        self.calls: list[tuple[str, object]] = []

    def wait_attached(self, timeout_s: float) -> AttachState:
        return AttachState.ATTACHED

    def session(self) -> SessionId | None:
        return self.current

    def publish_intent(
        self, keys: Sequence[bytes], rows: Sequence[int], stripes: Sequence[int], requests: Sequence[str], tails: int
    ) -> IntentRef | None:
        if self.full:
            return None
        assert len(keys) == len(rows) == len(stripes) == len(requests)
        self.intents.append({"keys": keys, "rows": rows, "stripes": stripes, "requests": requests, "tails": tails})
        return IntentRef(SESSION, len(self.intents))

    def lookup(
        self, lookup: int, request_id: str, keys: Sequence[bytes], tails: Sequence[bytes], wait_s: float, expected: bool
    ) -> bool:
        if self.current is None:
            return False
        self.lookups.append({"id": lookup, "keys": keys, "tails": tails, "wait": wait_s, "expected": expected})
        return True

    def answer(self, full: int, tail: int = -1, code: str = "") -> None:
        pages = full + (tail >= 0)
        self.answers.append(
            LookupAnswer(
                self.lookups[-1]["id"],
                LEASE if pages else None,
                full,
                tail,
                array("I", range(pages)),
                array("Q", range(pages)),
                b"\0" * full + b"\1" * (tail >= 0),
                code,
            )
        )

    def cancel(self, lookup: int) -> None:
        self.calls.append(("cancel", lookup))

    def loading(self, lease: LeaseRef) -> None:
        self.calls.append(("loading", lease))

    def release(self, lease: LeaseRef) -> None:
        self.calls.append(("release", lease))

    def drain(self) -> list[LookupAnswer]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        self.calls.append(("close", None))


class Half:
    def __init__(self, engine: Engine = ENGINE, *, seed_agrees: bool = True, **options: Any) -> None:
        values = {"pd_tail_save": True, "pd_tail_load": True, **options}
        parsed = parse_options({f"pegaflow.{name}": value for name, value in values.items()}, {})
        self.bus, self.pool, self.counters = FakeBus(), FakeBlocks(), Counters()
        self.now = 0.0

        def tail(parent: bytes | None, ids: Sequence[int]) -> bytes:
            return bytes(block_hash(ALGORITHM, NONE if parent is None else type(NONE)(parent), ids))

        self.half = SchedulerHalf(
            parsed,
            engine,
            tail,
            lambda: self.now,
            self.counters,
            logging.getLogger("test_scheduler_half"),
            seed_agrees=lambda: seed_agrees,
        )
        self.half.bind_pool(self.pool)
        self.half.connect(self.bus, FINGERPRINT)

    def new(self, ids: int, request_id: str = "r", **fields: Any) -> FakeRequest:
        request = FakeRequest(request_id, list(range(ids)), **fields)
        self.half.new_request(request)
        return request

    def step(self, scheduled: dict[str, int] | None = None, tables: dict[str, list[int]] | None = None) -> StepWork:
        numbers = scheduled or {}
        known = tables or {}
        state = SimpleNamespace(get_block_ids=lambda name: (known[name],) if name in known else None)
        return self.half.build(SimpleNamespace(num_scheduled_tokens=numbers, kv_connector_block_state=state))


def keys(ids: int, blocks: Sequence[int], tail: bool) -> list[bytes]:
    tokens = list(range(ids))
    hashes = prefix_hashes(ALGORITHM, NONE, tokens, BLOCK)
    out = [FINGERPRINT + hashes[index] for index in blocks]
    if tail:
        end = tail_hash(ALGORITHM, NONE, tokens, BLOCK)
        assert end is not None
        out.append(FINGERPRINT + end)
    return out


def test_a_save_publishes_pins_and_unpins() -> None:
    half = Half()
    half.new(50)
    work = half.step({"r": 50}, {"r": [10, 11, 12, 13]})
    (intent,) = half.bus.intents
    assert intent == {
        "keys": keys(50, [0, 1, 2], True),
        "rows": [16, 16, 16, 2],
        "stripes": [0, 0, 0, 0],
        "requests": ["r"] * 4,
        "tails": 1,
    }
    assert work.saves is not None
    assert work.saves.ref == IntentRef(SESSION, 1)
    assert work.saves.saves == (SaveOrder(1, 0, (10, 11, 12, 13), True),)
    assert half.pool.refs() == {10: 1, 11: 1, 12: 1, 13: 1}
    assert half.half.busy()
    half.half.finished("r")
    assert half.pool.refs() == {10: 1, 11: 1, 12: 1, 13: 1}
    half.half.reported(RankReport({1: 1}), ())
    assert half.pool.refs() == {}
    assert half.pool.freed == [13, 12, 11, 10]
    half.counters.take()
    half.bus.answer(0)
    half.step()
    half.counters.take()
    assert not half.half.busy()


def test_one_intent_for_all_requests_of_a_step() -> None:
    half = Half()
    half.new(20, "a")
    half.new(40, "b")
    work = half.step({"a": 20, "b": 40}, {"a": [1, 2], "b": [3, 4, 5]})
    (intent,) = half.bus.intents
    assert intent["requests"] == ["a", "a", "b", "b", "b"]
    assert intent["tails"] == 2
    assert work.saves is not None
    assert work.saves.saves == (SaveOrder(1, 0, (1, 2), True), SaveOrder(2, 2, (3, 4, 5), True))


def test_every_rank_has_to_report() -> None:
    half = Half(replace(ENGINE, tp=2))
    half.new(16)
    half.step({"r": 16}, {"r": [5]})
    first, second = RankReport({1: 1}), RankReport({1: 1})
    half.half.reported(first, ())
    assert half.pool.refs() == {5: 1}
    half.half.reported(second, ())
    assert half.pool.refs() == {}


def test_reports_add_up() -> None:
    report = RankReport({1: 1, 2: 1}, {"r": "session_over"})
    report.add(RankReport({2: 1, 3: 1}, {"r": "copy_failed", "s": "copy_failed"}))
    assert report == RankReport({1: 1, 2: 2, 3: 1}, {"r": "session_over", "s": "copy_failed"})


def test_with_mla_ranks_share_the_writing() -> None:
    half = Half(replace(ENGINE, tp=2, mla=True))
    half.new(64)
    half.step({"r": 64}, {"r": [5, 6, 7, 8]})
    assert half.bus.intents[0]["stripes"] == [0, 1, 0, 1]


def test_an_intent_that_does_not_go_out_pins_nothing_and_comes_again() -> None:
    half = Half()
    half.new(20)
    half.bus.full = True
    assert half.step({"r": 20}, {"r": [1, 2]}).saves is None
    assert half.pool.refs() == {}
    half.bus.full = False
    request = half.half._requests["r"]
    request.num_computed_tokens = 20
    assert half.step({"r": 1}, {"r": [1, 2]}).saves is not None
    assert half.bus.intents[0]["keys"] == keys(20, [0], True)


@pytest.mark.parametrize("why", ["mode", "no session", "no bus", "seed"])
def test_nothing_is_saved(why: str) -> None:
    half = Half(mode="read" if why == "mode" else "read_write", seed_agrees=why != "seed")
    if why == "no session":
        half.bus.current = None
    if why == "no bus":
        half.half.saving.connect(None)
    half.new(20)
    assert half.step({"r": 20}, {"r": [1, 2]}).saves is None
    assert half.bus.intents == []
    assert half.pool.refs() == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_request": object()},
        {"cache_salt": "s"},
        {"mm_features": [1]},
        {"prompt_embeds": object()},
        {"resumable": True},
    ],
)
def test_full_blocks_but_no_tail(fields: dict[str, Any]) -> None:
    half = Half()
    half.new(20, **fields)
    half.step({"r": 20}, {"r": [1, 2]})
    assert half.bus.intents[0]["keys"] == keys(20, [0], False)
    assert half.bus.lookups[0]["tails"] == []


def test_a_decoder_saves_no_tails() -> None:
    half = Half(replace(ENGINE, role="kv_consumer"))
    half.new(20)
    half.step({"r": 20}, {"r": [1, 2]})
    assert half.bus.intents[0]["keys"] == keys(20, [0], False)


def test_one_bad_request_does_not_cost_the_others_their_save(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    no_table, no_tail, _ = half.new(20, "no table"), half.new(20, "no tail"), half.new(20, "good")
    no_tail.prompt_token_ids = [*range(19), 2**70]
    tables: dict[str, Any] = {no_table.request_id: 5, "no tail": [1, 2], "good": [3, 4]}
    work = half.step({"no table": 20, "no tail": 20, "good": 20}, tables)
    assert work.saves is not None
    assert [order.blocks for order in work.saves.saves] == [(3, 4)]
    assert half.pool.refs() == {3: 1, 4: 1}
    assert "offer_failed: request no table" in caplog.text
    assert "offer_failed: request no tail" in caplog.text


def test_an_error_while_saving_does_not_lose_the_loads(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [1, 2, 3, 4], 48)
    work = half.half.build(SimpleNamespace(num_scheduled_tokens=None))
    assert [load.request_id for load in work.loads] == ["r"]
    assert "hook_failed" in caplog.text


def test_hashes_finer_than_a_block() -> None:
    half = Half(replace(ENGINE, hash_block_size=8))
    half.new(40, hash_block=8)
    half.step({"r": 40}, {"r": [1, 2, 3]})
    hashes = prefix_hashes(ALGORITHM, NONE, list(range(40)), 8)
    tail = block_hash(ALGORITHM, hashes[3], list(range(32, 40)))
    assert half.bus.intents[0]["keys"] == [FINGERPRINT + h for h in (hashes[1], hashes[3], tail)]


@pytest.mark.parametrize("fine", [4, 8])
def test_with_hashes_finer_than_a_block_the_one_at_its_boundary_is_its_key(fine: int) -> None:
    half = Half(replace(ENGINE, hash_block_size=fine))
    request = half.new(51, hash_block=fine)
    hashes = prefix_hashes(ALGORITHM, NONE, list(range(51)), fine)
    per_block = BLOCK // fine
    blocks = [FINGERPRINT + hashes[(index + 1) * per_block - 1] for index in range(3)]
    (lookup,) = half.bus.lookups
    assert lookup["keys"] == blocks
    # A tail's parent is the hash of the last full block, at its boundary as well.
    parent = hashes[3 * per_block - 1]
    ends = [FINGERPRINT + block_hash(ALGORITHM, type(NONE)(parent), list(range(48, end))) for end in (50, 51)]
    assert lookup["tails"] == ends
    half.bus.answer(3, tail=0)
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 0)
    half.step({"r": 51}, {"r": [20, 21, 22, 23]})
    assert half.bus.intents[0]["keys"] == [*blocks, ends[1]]


def test_a_lookup_starts_with_the_request() -> None:
    half = Half(wait_ms=700)
    half.new(51)
    (lookup,) = half.bus.lookups
    assert lookup["keys"] == keys(51, [0, 1, 2], False)
    assert lookup["tails"] == [*keys(50, [], True), *keys(51, [], True)]
    assert (lookup["wait"], lookup["expected"]) == (0.7, False)


@pytest.mark.parametrize(
    ("params", "strict", "expected"),
    [({"pegaflow_expected": True}, False, True), ({"pegaflow_expected": "yes"}, False, False), (None, True, True)],
)
def test_expected(params: dict[str, Any] | None, strict: bool, expected: bool) -> None:
    half = Half(decode="strict" if strict else "recompute")
    half.new(51, kv_transfer_params=params)
    assert half.bus.lookups[0]["expected"] is expected


def test_blocks_in_vllms_own_cache_are_not_looked_up() -> None:
    half = Half()
    half.pool.cached = set(prefix_hashes(ALGORITHM, NONE, list(range(51)), BLOCK)[:2])
    half.new(51)
    assert half.bus.lookups[0]["keys"] == keys(51, [2], False)


@pytest.mark.parametrize("fields", [{"skip_reading_prefix_cache": True}, {"abort_immediately": True}])
def test_no_lookup_for_requests_that_read_no_cache(fields: dict[str, Any]) -> None:
    half = Half()
    half.new(51, **fields)
    assert half.bus.lookups == []


def test_write_only_never_asks() -> None:
    half = Half(mode="write_only")
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.bus.lookups == []


def test_from_lookup_to_load_to_release() -> None:
    half = Half()
    request = half.new(51)
    assert half.half.matched(request, 0) == (None, False)
    assert half.half.matched(request, 0) == (None, False)
    half.bus.answer(3, tail=0)
    half.now = 2.0
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 50)
    half.now = 5.0
    assert half.step().loads == (Load("r", (20, 21, 22, 23), LEASE, array("I", range(4)), array("Q", range(4)), True, ""),)
    assert half.step().loads == ()
    assert len(half.bus.lookups) == 1
    half.half.reported(RankReport(), {"r"})
    half.half.allocated(request, [20, 21, 22, 23], 0)
    assert half.bus.calls == [("loading", LEASE), ("release", LEASE)]
    counted = half.counters.take()
    assert counted == {
        "lookups|hit": 1,
        "lookup_pages|local": 3,
        "lookup_pages|remote": 1,
        "lookup_seconds|hit": [2.0],
        "loads|done": 1,
        "load_seconds": [3.0],
        "tier_attached|scheduler": 1,
    }
    # What came from the tier is not offered back.
    request.num_computed_tokens = 50
    half.step({"r": 1}, {"r": [20, 21, 22, 23]})
    assert half.bus.intents[0]["keys"] == keys(51, [], True)
    # But the block that came as a tail has become a full page when decoding has filled it.
    request.output, request.num_computed_tokens = 13, 63
    half.step({"r": 1}, {"r": [20, 21, 22, 23]})
    full = prefix_hashes(ALGORITHM, NONE, request.ids, BLOCK)[3]
    assert half.bus.intents[1]["keys"] == [FINGERPRINT + full]


def test_a_failed_load_is_not_claimed_again() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 48)
    half.half.reported(RankReport(failed={"r": "generation_changed"}), ())
    assert half.bus.calls == [("loading", LEASE)]
    half.half.reported(None, {"r"})
    assert half.bus.calls[-1] == ("release", LEASE)
    assert half.half.matched(request, 0) == (0, False)
    assert half.counters.take()["loads|generation_changed"] == 1


def test_an_aborted_load_is_released_when_the_ranks_are_done() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 48)
    half.half.finished("r")
    assert half.bus.calls == [("loading", LEASE)]
    half.half.reported(RankReport(), {"r"})
    assert half.bus.calls[-1] == ("release", LEASE)
    assert half.half.loads.requests == 0


def test_aborted_while_waiting_for_an_answer() -> None:
    half = Half()
    half.new(51)
    half.half.finished("r")
    assert half.bus.calls == [("cancel", 1)]
    half.bus.answer(3)
    half.step()
    assert half.bus.calls[-1] == ("release", LEASE)


def test_without_a_tier_it_is_a_miss_at_once() -> None:
    half = Half()
    half.bus.current = None
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.counters.take() == {"lookups|no_tier": 1, "pages_missed|no_tier": 4}


def test_a_session_that_changed_asks_again() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (48, True)
    half.bus.current = SessionId(2, 1)
    assert half.half.matched(request, 0) == (None, False)
    assert len(half.bus.lookups) == 2
    assert half.bus.calls == [("release", LEASE)]


def test_strict_decode_fails_what_is_not_all_there(caplog: pytest.LogCaptureFixture) -> None:
    half = Half(decode="strict")
    request = half.new(51)
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (50, True)
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 50)
    (load,) = half.step().loads
    assert load.refuse == "prompt_incomplete"
    assert caplog.text.count("strict_decode_refused: request r: prompt_incomplete") == 1
    assert half.counters.take()["requests_refused|prompt_incomplete"] == 1


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(0, 51)], {"prompt_positions_computed": 51, "prompt_last_positions_computed": 1}),
        ([(50, 1), (51, 1)], {"prompt_positions_computed": 1, "prompt_last_positions_computed": 1}),
        ([(0, 32), (32, 16), (48, 7)], {"prompt_positions_computed": 51, "prompt_last_positions_computed": 1}),
        ([(0, 32), (0, 51)], {"prompt_positions_computed": 83, "prompt_last_positions_computed": 1}),
    ],
)
def test_prompt_positions_computed(steps: list[tuple[int, int]], expected: dict[str, int]) -> None:
    half = Half(mode="read")
    half.bus.current = None
    request = half.new(51)
    half.counters.take()
    for computed, scheduled in steps:
        request.num_computed_tokens = computed
        half.step({"r": scheduled})
    assert half.counters.take() == expected


@pytest.mark.parametrize(
    ("full", "tail", "code", "outcome", "missed"),
    [
        (3, 0, "", "hit", {}),
        (3, -1, "", "hit", {"unknown": 1}),
        (1, -1, "deadline", "hit", {"deadline": 3}),
        (0, -1, "", "miss", {"unknown": 4}),
        (0, -1, "no_space", "no_space", {"no_space": 4}),
    ],
)
def test_every_page_asked_for_is_a_hit_or_a_miss(full: int, tail: int, code: str, outcome: str, missed: dict[str, int]) -> None:
    half = Half()
    half.new(51)
    half.bus.answer(full, tail, code)
    half.step()
    counted = half.counters.take()
    assert {name: count for name, count in counted.items() if name.startswith("lookups")} == {f"lookups|{outcome}": 1}
    found = {name: count for name, count in counted.items() if name.startswith("pages_missed")}
    assert found == {f"pages_missed|{reason}": count for reason, count in missed.items()}
    assert counted.get("lookup_pages|local", 0) + counted.get("lookup_pages|remote", 0) + sum(found.values()) == 4


def test_pages_from_disk_are_counted_as_such() -> None:
    half = Half()
    half.new(51)
    half.bus.answer(3)
    half.bus.answers[0] = half.bus.answers[0]._replace(sources=b"\2\0\2")
    half.step()
    counted = half.counters.take()
    assert (counted["lookup_pages|disk"], counted["lookup_pages|local"]) == (2, 1)


@pytest.mark.parametrize(("how", "reason"), [("abort", "cancelled"), ("timeout", "lookup_timeout")])
def test_a_lookup_that_is_given_up_counts_once(how: str, reason: str) -> None:
    half = Half()
    request = half.new(51)
    if how == "abort":
        half.half.finished("r")
    else:
        half.now = 100.0
        assert half.half.matched(request, 0) == (0, False)
    half.bus.answer(3)  # on its way already; its lease goes back, and it counts no more
    half.step()
    counted = half.counters.take()
    assert {name: count for name, count in counted.items() if name.startswith(("lookup", "pages"))} == {
        f"lookups|{reason}": 1,
        f"pages_missed|{reason}": 4,
    }
    assert half.bus.calls == [("cancel", 1), ("release", LEASE)]


def gauges(half: Half) -> dict[str, int]:
    return {name: value for name, value in half.counters.take().items() if name.endswith("|scheduler")}


def test_gauges_are_told_when_they_change_and_when_they_are_zero_again() -> None:
    half = Half()
    request = half.new(51)
    assert gauges(half) == {"tier_attached|scheduler": 1, "open_lookups|scheduler": 1}
    assert gauges(half) == {}
    half.bus.answer(3)
    half.half.matched(request, 0)
    assert gauges(half) == {"open_lookups|scheduler": 0, "open_leases|scheduler": 1}
    half.half.allocated(request, [20, 21, 22, 23], 48)
    half.new(32, "s")
    half.bus.answer(0)
    half.step({"s": 32}, {"s": [5, 6]})
    assert gauges(half) == {"open_loads|scheduler": 1, "open_saves|scheduler": 1}
    half.half.finished("r")
    half.half.finished("s")
    half.half.reported(RankReport({1: 1}), {"r"})
    assert half.half.busy(), "an engine without requests goes on until vLLM has been told"
    assert gauges(half) == {"open_loads|scheduler": 0, "open_saves|scheduler": 0, "open_leases|scheduler": 0}
    assert not half.half.busy()
    half.bus.current = None
    assert half.half.busy()
    assert gauges(half) == {"tier_attached|scheduler": 0}


def test_what_another_connector_received_is_not_ours() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 0)  # the other one was chosen
    half.step()
    half.half.reported(None, {"r"})
    assert half.bus.calls == [("release", LEASE)]
    assert not [name for name in half.counters.take() if name.startswith("load") and "lookup" not in name]


def test_a_rank_that_reports_twice_does_not_cost_other_saves_their_end(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    half.new(32, "a")
    half.new(48, "b")
    half.step({"a": 32, "b": 48}, {"a": [1, 2], "b": [3, 4, 5]})
    half.half.reported(RankReport({1: 1}), ())
    half.half.reported(RankReport({1: 1, 2: 1}), ())
    assert half.pool.refs() == {}
    assert "save_ended_twice" in caplog.text


def test_seconds_of_a_save_run_until_every_rank_has_ended_it() -> None:
    half = Half(replace(ENGINE, tp=2), mode="write_only")
    half.new(32)
    half.now = 1.0
    half.step({"r": 32}, {"r": [1, 2]})
    half.now = 1.5
    half.half.reported(RankReport({1: 1}), ())
    half.now = 4.0
    half.half.reported(RankReport({1: 1}), ())
    assert half.counters.take()["save_seconds"] == [3.0]


@pytest.mark.parametrize(
    ("computed", "tokens", "sources", "expected"),
    [
        (0, 50, b"\0\1\2\1", {0: 16, 1: 18, 2: 16}),
        (16, 34, b"\0\1\2\1", {1: 18, 2: 16}),
        (0, 47, b"\0\0\1\1", {0: 32, 1: 15}),
    ],
)
def test_tokens_by_source(computed: int, tokens: int, sources: bytes, expected: dict[int, int]) -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3, tail=0)
    half.bus.answers[0] = half.bus.answers[0]._replace(sources=sources)
    assert half.half.sources(request) == {}
    half.half.matched(request, computed)
    half.half.allocated(request, [20, 21, 22, 23], tokens)
    assert half.half.sources(request) == expected


def test_after_a_reset_nothing_from_before_is_found_and_all_is_saved_anew() -> None:
    half = Half()
    request = half.new(51)
    half.step({"r": 51}, {"r": [1, 2, 3, 4]})
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (48, True)
    assert not half.half.reset(), "its blocks are pinned"
    half.half.reported(RankReport({1: 1}), ())
    assert half.half.reset()
    assert half.bus.calls == [("release", LEASE)]
    assert half.half.matched(request, 0) == (None, False)
    old, new = half.bus.lookups
    assert len(new["keys"]) == 3
    assert not {*old["keys"], *old["tails"]} & {*new["keys"], *new["tails"]}
    assert {len(key) for key in [*old["keys"], *new["keys"]]} == {32}
    half.step({"r": 51}, {"r": [1, 2, 3, 4]})
    first, again = half.bus.intents
    assert again["keys"][:3] == new["keys"], "what it saves now, it finds now"
    assert not set(first["keys"]) & set(again["keys"])
    assert half.counters.take()["cache_resets"] == 1


def test_a_reset_while_vllms_own_has_failed_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    half.pool.touch([half.pool.blocks[7]])  # a request that runs
    assert not half.half.reset()
    assert "reset_refused" in caplog.text
    half.new(16)
    assert half.bus.lookups[0]["tails"][-1:] == keys(16, [0], False), "the names are those from before"


def test_a_reset_that_concerns_the_engine_only() -> None:
    half = Half(on_reset="keep")
    half.pool.touch([half.pool.blocks[7]])
    assert half.half.reset()
    request = half.new(51)
    assert half.bus.lookups[0]["keys"] == keys(51, [0, 1, 2], False)
    assert half.half.matched(request, 0) == (None, False)


def test_another_none_hash_turns_the_cache_off(caplog: pytest.LogCaptureFixture) -> None:
    half = Half(seed_agrees=False)
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.bus.lookups == []
    assert "none_hash_differs" in caplog.text


def test_closing_closes_the_bus() -> None:
    half = Half()
    half.half.close()
    assert half.bus.calls == [("close", None)]
