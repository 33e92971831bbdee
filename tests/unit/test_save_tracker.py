"""Saving: each row of the contract's table, the torn block, and the pins."""

import pytest
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker, Unpin

BLOCK = 16
TABLE = [100, 101, 102, 103, 104, 105]


class Engine:
    """One request, driven like vLLM drives it: `step` is one scheduling step that publishes what is offered."""

    def __init__(self, prompt: int, *, tails: bool = True, plain: bool = True, ranks: int = 1) -> None:
        self.tracker = SaveTracker(BLOCK, ranks, tails)
        self.prompt = prompt
        self.known = prompt
        self.tracker.admitted("r", prompt, plain)

    def offer(self, computed: int, scheduled: int, table: list[int] | None = None) -> Offer | None:
        progress = Progress("r", computed, scheduled, self.known, self.known // BLOCK)
        blocks = TABLE if table is None else table
        offer = self.tracker.progressed(progress, blocks)
        assert self.tracker.wants(progress) or offer is None
        self.tracker.validate()
        return offer

    def step(self, computed: int, scheduled: int, table: list[int] | None = None) -> tuple[list[int], int]:
        """Full block indices saved by this step, and rows of the tail (0: no tail)."""
        offer = self.offer(computed, scheduled, table)
        if offer is None:
            return [], 0
        self.tracker.published([offer])
        self.tracker.validate()
        indices = list(offer.indices)
        if offer.tail_rows:
            assert indices.pop() == self.prompt // BLOCK
        return indices, offer.tail_rows


def test_tail_not_before_the_prompt_is_written() -> None:
    assert Engine(50).step(0, 49) == ([0, 1, 2], 0)


@pytest.mark.parametrize("scheduled", [50, 51])
def test_tail_when_the_step_reaches_the_prompts_end(scheduled: int) -> None:
    engine = Engine(50)
    offer = engine.offer(0, scheduled)
    assert offer == Offer("r", (0, 1, 2, 3), (100, 101, 102, 103), 2, 3)


def test_tail_fires_once() -> None:
    engine = Engine(50)
    assert engine.step(0, 50) == ([0, 1, 2], 2)
    engine.known = 51
    assert engine.step(50, 1) == ([], 0)


def test_an_aligned_prompt_has_no_tail() -> None:
    assert Engine(48).step(0, 48) == ([0, 1, 2], 0)


def test_a_tail_of_one_token() -> None:
    assert Engine(49).step(0, 49) == ([0, 1, 2], 1)


def test_a_prompt_shorter_than_a_block() -> None:
    assert Engine(10).step(0, 10) == ([], 10)


def test_admitted_with_most_of_it_in_the_local_cache() -> None:
    assert Engine(50).step(48, 2) == ([0, 1, 2], 2)


def test_the_same_prompt_again_is_offered_in_full() -> None:
    first, again = Engine(50), Engine(50)
    assert first.step(0, 50) == again.step(48, 2) == ([0, 1, 2], 2)


def test_preempted_and_resumed_in_two_steps() -> None:
    engine = Engine(50)
    assert engine.step(0, 32) == ([0, 1], 0)
    assert engine.step(0, 32) == ([], 0)
    assert engine.step(32, 18) == ([2], 2)


def test_a_tail_whose_block_is_not_allocated_yet_comes_later() -> None:
    engine = Engine(50)
    assert engine.step(0, 50, TABLE[:3]) == ([0, 1, 2], 0)
    engine.known = 51
    assert engine.step(50, 1) == ([], 2)


def test_never_a_tail_for_requests_with_more_than_ids() -> None:
    assert Engine(50, plain=False).step(0, 50) == ([0, 1, 2], 0)


def test_never_a_tail_when_the_option_is_off() -> None:
    assert Engine(50, tails=False).step(0, 50) == ([0, 1, 2], 0)


def test_the_torn_block() -> None:
    """Rows 40..47 are not computed in the resumed step, so block 2 must wait for the next."""
    engine = Engine(50)
    assert engine.step(0, 32) == ([0, 1], 0)
    fresh = [110, 111, 112, 113]
    assert engine.step(0, 40, fresh) == ([], 0)
    offer = engine.offer(40, 10, fresh)
    assert offer == Offer("r", (2, 3), (112, 113), 2, 3)
    assert engine.step(40, 10, fresh) == ([2], 2)
    engine.known = 51
    assert engine.step(50, 1, fresh) == ([], 0)


def test_drafts_that_may_be_rejected_do_not_count() -> None:
    engine = Engine(60)
    assert engine.step(0, 60) == ([0, 1, 2], 12)
    engine.known = 61
    # 60 computed, one known token and four drafts: the step writes 65 rows, 61 of them known.
    assert engine.step(60, 5) == ([], 0)
    engine.known = 64
    assert engine.step(63, 1) == ([3], 0)


def test_blocks_filled_by_decoding_are_saved() -> None:
    engine = Engine(50)
    engine.step(0, 50)
    engine.known = 64
    assert engine.step(63, 1) == ([3], 0)


def test_no_more_than_the_table_or_the_hashes_have() -> None:
    engine = Engine(64)
    assert engine.step(0, 64, TABLE[:2]) == ([0, 1], 0)
    progress = Progress("r", 0, 64, 64, hashes=3)
    offer = engine.tracker.progressed(progress, TABLE)
    assert offer is not None
    assert offer.indices == (2,)


def test_what_was_not_published_is_offered_again_with_what_came_since() -> None:
    engine = Engine(50)
    assert engine.offer(0, 32) == Offer("r", (0, 1), (100, 101), 0, 2)
    assert engine.offer(32, 18) == Offer("r", (0, 1, 2, 3), (100, 101, 102, 103), 2, 3)


def test_a_tail_that_went_unpublished_until_its_block_was_full_is_pinned_once() -> None:
    engine = Engine(10)
    assert engine.offer(0, 10) == Offer("r", (0,), (100,), 10, 0)
    engine.known = 16
    offer = engine.offer(15, 1)
    assert offer == Offer("r", (0, 0), (100, 100), 10, 1)
    (save,) = engine.tracker.published([offer])
    assert (save.blocks, save.pins) == ((100, 100), (100,))
    assert engine.tracker.pinned() == {100: 1}


def test_blocks_that_came_from_the_tier_are_not_offered_back() -> None:
    engine = Engine(50)
    engine.tracker.loaded("r", 1, 3)
    assert engine.step(49, 1) == ([0], 2)
    engine.known = 64
    assert engine.step(63, 1) == ([3], 0)


def test_nothing_to_say_when_all_came_from_the_tier() -> None:
    engine = Engine(48)
    engine.tracker.loaded("r", 0, 3)
    offer = engine.offer(47, 1)
    assert offer == Offer("r", (), (), 0, 3)
    assert engine.tracker.published([offer]) == []
    assert engine.offer(48, 1) is None


def test_pins_last_until_every_rank_ended_the_save() -> None:
    engine = Engine(50, ranks=2)
    offer = engine.offer(0, 50)
    assert offer is not None
    (save,) = engine.tracker.published([offer])
    assert engine.tracker.pinned() == {100: 1, 101: 1, 102: 1, 103: 1}
    assert engine.tracker.ended(save.save) is None
    engine.tracker.validate()
    assert engine.tracker.open_saves == 1
    assert engine.tracker.ended(save.save) == Unpin((100, 101, 102, 103))
    assert engine.tracker.pinned() == {}
    with pytest.raises(KeyError):
        engine.tracker.ended(save.save)


def test_one_rank_too_many_is_an_error() -> None:
    engine = Engine(50, ranks=2)
    offer = engine.offer(0, 50)
    assert offer is not None
    (save,) = engine.tracker.published([offer])
    with pytest.raises(KeyError):
        engine.tracker.ended(save.save, ranks=3)


def test_a_finished_request_keeps_its_pins_and_offers_nothing() -> None:
    engine = Engine(50)
    offer = engine.offer(0, 32)
    assert offer is not None
    (save,) = engine.tracker.published([offer])
    engine.tracker.finished("r")
    assert engine.offer(32, 18) is None
    assert engine.tracker.open_saves == 1
    assert engine.tracker.ended(save.save) == Unpin((100, 101))
    engine.tracker.finished("r")


def test_two_saves_of_one_block_are_two_references() -> None:
    tracker = SaveTracker(BLOCK, 1, True)
    for name in "ab":
        tracker.admitted(name, 20, True)
    offers = [tracker.progressed(Progress(name, 0, 20, 20, 1), [7, 8 + i]) for i, name in enumerate("ab")]
    saves = tracker.published([offer for offer in offers if offer is not None])
    assert tracker.pinned() == {7: 2, 8: 1, 9: 1}
    tracker.ended(saves[0].save)
    assert tracker.pinned() == {7: 1, 9: 1}
