"""The rank half with a stand-in for the bus: what is reported, when, and what each slot is answered."""

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence

import pytest
from pegaflow.common.pages import PageLayout
from pegaflow.common.pool import GRANULE
from pegaflow.connector.copier import Copier
from pegaflow.connector.counters import Counters
from pegaflow.connector.load_tracker import Load
from pegaflow.connector.session import AttachState, Grant, IntentRef, LeaseRef, Member, SessionId
from pegaflow.connector.work import SaveOrder, SaveWork, StepWork
from pegaflow.connector.worker import Collected, RankHalf

SESSION = SessionId(1, 1)
REF = IntentRef(SESSION, 9)
LEASE = LeaseRef(SESSION, 3)


class FakePool:
    def __init__(self) -> None:
        self.memory = memoryview(bytearray(64 * GRANULE))
        self.generations: dict[int, int] = {}

    def generation(self, slot: int) -> int:
        return self.generations.get(slot, 50 + slot)


class FakeCopier(Copier):
    layout = PageLayout.of(4, [("l", 1 << 20, "uint8[1048576]")])  # twenty-four pages go at a time

    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []
        self.fetched: list[tuple[int, int]] = []
        self.marks: list[object] = []
        self.before_fetch: Callable[[], None] = lambda: None
        self.fail = False
        self.fail_after = 1 << 30

    def mark(self) -> object:
        self.marks.append(object())
        return self.marks[-1]

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        assert mark in self.marks
        if self.fail or len(self.stored) >= self.fail_after:
            raise RuntimeError("a copy that fails")
        self.stored += zip(blocks, [offset // GRANULE for offset in offsets], strict=True)

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        assert mark in self.marks
        if self.fail:
            raise RuntimeError("a copy that fails")
        self.before_fetch()
        self.fetched += zip(blocks, [offset // GRANULE for offset in offsets], strict=True)


class FakeBus:
    def __init__(self) -> None:
        self.view: FakePool | None = FakePool()
        self.current: SessionId | None = SESSION
        self.grant: Grant | None = None
        self.answers: list[tuple[str, tuple[int, ...]]] = []
        self.open = 0
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.any_deadline = False

    def wait_attached(self, timeout_s: float) -> AttachState:
        return AttachState.ATTACHED

    def session(self) -> SessionId | None:
        return self.current

    def pool(self) -> FakePool | None:
        return self.view

    def take_grant(self, ref: IntentRef, deadline: float) -> Grant | None:
        assert ref == REF
        assert self.any_deadline or deadline == pytest.approx(100.05)
        return self.grant

    def written(self, grant: Grant, positions: Sequence[int]) -> None:
        self.answers.append(("written", tuple(positions)))

    def abandoned(self, grant: Grant, positions: Sequence[int]) -> None:
        self.answers.append(("abandoned", tuple(positions)))

    def begin_copy(self, session: SessionId) -> FakePool | None:
        self.gate.wait()
        if session != self.current:
            return None
        self.open += 1
        return self.view

    def end_copy(self) -> None:
        self.open -= 1

    def close(self) -> None:
        self.closed = True


class Rank:
    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.copier, self.bus, self.counters = FakeCopier(), FakeBus(), Counters()
        member = Member("e", "rank", 0, shard, shards, 0, 1)
        self.half = RankHalf(self.copier, self.bus, member, lambda: 100.0, self.counters, logging.getLogger("test_worker"))
        self.collected = Collected()

    def wait(self, done: Callable[[Collected], bool]) -> Collected:
        """Collects like vLLM does, step after step, until all that is expected has been reported."""
        deadline = threading.Event()
        for _ in range(2000):
            new = self.half.collect()
            assert not new.received & self.collected.received, "reported twice"
            assert not new.report.ended.keys() & self.collected.report.ended.keys(), "reported twice"
            self.collected.received |= new.received
            self.collected.refused |= new.refused
            self.collected.bad_blocks |= new.bad_blocks
            self.collected.report.add(new.report)
            if done(self.collected):
                return self.collected
            deadline.wait(0.002)
        raise AssertionError("nothing was reported")


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.bus.gate.set()
    made.half.close()
    assert made.bus.closed
    assert made.bus.open == 0


def load(blocks: tuple[int, ...], slots: list[int], request_id: str = "r", refuse: str = "") -> Load:
    lease = None if refuse else LEASE
    return Load(request_id, blocks, lease, array("I", slots), array("Q", [50 + slot for slot in slots]), False, refuse)


def grant(positions: list[int], slots: list[int]) -> Grant:
    marks = b"".join(b"%08d" % position for position in positions)
    return Grant(REF, 4, array("I", positions), array("I", slots), array("Q", [0] * len(slots)), marks)


def received(collected: Collected) -> bool:
    return "r" in collected.received


def test_a_load_copies_and_reports_once(rank: Rank) -> None:
    step = StepWork(1, None, (load((7, 8), [2, 3]),))
    rank.half.start_loads(step)
    rank.half.start_loads(step)
    done = rank.wait(received)
    assert rank.copier.fetched == [(7, 2), (8, 3)]
    assert (done.received, done.refused, done.bad_blocks, done.report.failed) == ({"r"}, set(), set(), {})
    assert rank.counters.take() == {"pages_loaded": 2, "bytes_loaded": 2 << 20, "load_copy_seconds": [0.0]}


def test_a_rank_picks_its_own_shard() -> None:
    rank = Rank(shard=1, shards=2)
    rank.half.start_loads(StepWork(1, None, (load((7, 8), [2, 3, 4, 5]),)))
    rank.wait(received)
    rank.half.close()
    assert rank.copier.fetched == [(7, 3), (8, 5)]


def test_many_pages_go_in_chunks_and_a_bad_one_fails_those_from_its_chunk_on(rank: Rank) -> None:
    assert rank.bus.view is not None
    rank.bus.view.generations[40] = 1
    blocks = tuple(range(100, 150))
    rank.half.start_loads(StepWork(1, None, (load(blocks, list(range(50))),)))
    done = rank.wait(received)
    assert done.bad_blocks == set(range(124, 150))
    assert done.report.failed == {"r": "generation_changed"}
    assert not done.refused
    assert rank.counters.take()["pages_loaded"] == 24


def test_a_generation_that_changes_during_the_copy_fails_the_load(rank: Rank) -> None:
    pool = rank.bus.view
    assert pool is not None
    rank.copier.before_fetch = lambda: pool.generations.update({3: 99})
    rank.half.start_loads(StepWork(1, None, (load((7, 8), [2, 3]),)))
    done = rank.wait(received)
    assert done.bad_blocks == {7, 8}
    assert done.report.failed == {"r": "generation_changed"}


def test_a_session_that_is_over_fails_the_load(rank: Rank) -> None:
    rank.bus.current = SessionId(2, 1)
    rank.half.start_loads(StepWork(1, None, (load((7,), [2]),)))
    assert rank.wait(received).report.failed == {"r": "session_over"}


def test_a_copy_that_raises_fails_the_load(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    rank.copier.fail = True
    rank.half.start_loads(StepWork(1, None, (load((7,), [2]),)))
    done = rank.wait(received)
    assert (done.bad_blocks, done.report.failed) == ({7}, {"r": "copy_failed"})
    assert "load_failed" in caplog.text


def test_a_refused_receive_fails_as_a_whole_and_touches_nothing(rank: Rank) -> None:
    rank.half.start_loads(StepWork(1, None, (load((7,), [], refuse="prompt_incomplete"),)))
    done = rank.wait(received)
    assert done.refused == {"r"}
    assert not done.bad_blocks
    assert done.report.failed == {"r": "prompt_incomplete"}
    assert rank.copier.fetched == []


def test_nothing_is_reported_while_a_copy_runs(rank: Rank) -> None:
    rank.bus.gate.clear()
    rank.half.start_loads(StepWork(1, None, (load((7,), [2]),)))
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, (5,), False),)))
    rank.bus.grant = grant([0], [9])
    assert rank.half.collect() == Collected()
    rank.bus.gate.set()
    rank.wait(lambda done: received(done) and 1 in done.report.ended)


def ended(*saves: int) -> Callable[[Collected], bool]:
    return lambda done: set(saves) <= done.report.ended.keys()


def test_granted_positions_are_written_and_the_rest_ends_at_once(rank: Rank) -> None:
    rank.bus.grant = grant([0, 2, 3], [10, 11, 12])
    rank.half.start_saves(
        SaveWork(REF, (SaveOrder(1, 0, (5, 6, 7), False), SaveOrder(2, 3, (8,), True), SaveOrder(3, 4, (9,), False)))
    )
    done = rank.wait(ended(1, 2, 3))
    assert rank.copier.stored == [(5, 10), (7, 11), (8, 12)]
    assert rank.bus.answers == [("written", (0, 2)), ("written", (3,))]
    assert done.report.ended == {1: 1, 2: 1, 3: 1}
    assert rank.counters.take() == {
        "saves|written": 2,
        "saves|not_granted": 1,
        "pages_saved": 3,
        "bytes_saved": 3 << 20,
        "tails_saved": 1,
        "save_copy_seconds": [0.0, 0.0],
    }


def test_without_a_grant_the_saves_end(rank: Rank) -> None:
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, (5,), False),)))
    rank.wait(ended(1))
    assert rank.bus.answers == []
    assert rank.counters.take() == {"saves|no_grant": 1}


def test_a_session_that_is_over_abandons(rank: Rank) -> None:
    rank.bus.grant = grant([0], [10])
    rank.bus.current = None
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, (5,), False),)))
    rank.wait(ended(1))
    assert rank.bus.answers == [("abandoned", (0,))]
    assert rank.copier.stored == []


def test_a_copy_that_raises_abandons_and_ends_the_save(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    rank.bus.grant = grant([0, 1], [10, 11])
    rank.copier.fail = True
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, (5, 6), False),)))
    rank.wait(ended(1))
    assert rank.bus.answers == [("abandoned", (0, 1))]
    assert "save_failed" in caplog.text
    assert rank.counters.take() == {"saves|failed": 1, "save_copy_seconds": [0.0]}


def test_each_chunk_is_answered_for_before_the_next_is_copied(rank: Rank) -> None:
    count = 50
    rank.bus.grant = grant(list(range(count)), list(range(100, 100 + count)))
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, tuple(range(count)), False),)))
    rank.wait(ended(1))
    assert rank.bus.answers == [("written", tuple(range(24))), ("written", tuple(range(24, 48))), ("written", (48, 49))]


def test_pages_that_were_written_before_an_error_are_counted(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    rank.bus.grant = grant(list(range(50)), list(range(100, 150)))
    rank.copier.fail_after = 24
    rank.half.start_saves(SaveWork(REF, (SaveOrder(1, 0, tuple(range(50)), True),)))
    rank.wait(ended(1))
    assert rank.bus.answers == [("written", tuple(range(24))), ("abandoned", tuple(range(24, 50)))]
    counted = rank.counters.take()
    assert (counted["pages_saved"], counted["saves|failed"]) == (24, 1)
    assert "tails_saved" not in counted


def test_closing_waits_for_the_chunk_under_way_and_gives_up_the_rest() -> None:
    rank = Rank()
    rank.bus.gate.clear()
    rank.bus.grant = grant(list(range(50)), list(range(100, 150)))
    for number in range(1, 4):
        rank.half.start_saves(SaveWork(REF, (SaveOrder(number, 0, tuple(range(50)), False),)))
        rank.half.start_loads(StepWork(number, None, (load(tuple(range(50)), list(range(50))),)))
    closer = threading.Thread(target=rank.half.close)
    rank.bus.any_deadline = True
    closer.start()
    while not rank.half._closing:
        pass
    rank.bus.gate.set()
    closer.join(30)
    assert not closer.is_alive()
    assert rank.bus.closed
    assert len(rank.copier.stored) <= 24 and len(rank.copier.fetched) <= 24, "one chunk of each kind at most"
    told = [position for _, positions in rank.bus.answers for position in positions]
    assert sorted(told) == sorted(3 * list(range(50))), "every slot of every grant has its last word"
    report = rank.half.collect()
    assert report.report.ended == {1: 1, 2: 1, 3: 1}
    assert report.report.failed == {"r": "closing"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pegaflow-")]
