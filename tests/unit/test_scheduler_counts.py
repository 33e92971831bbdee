"""What the scheduler half counts."""

import pytest
from pegaflow.connector.work import RankReport
from scheduler_script import LEASE, Half


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
