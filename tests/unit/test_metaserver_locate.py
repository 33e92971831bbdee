"""Which owners a locate names, in which order, and where its answer ends."""

from __future__ import annotations

import pytest
from metaserver_script import A1, B1, K, Script, located, owners
from pegaflow.common.wire.messages.catalogue import (
    DISK,
    GONE,
    NO_OWNER,
    PENDING,
    SEALED,
    Locate,
)
from pegaflow.services.metaserver.events import Asked, Tick
from pegaflow.services.metaserver.locate import _STAGE


def test_sealed_elsewhere_is_answered_at_once_with_its_owner() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING})
    out = script.locate(K[:3])
    answer = located(out)
    assert list(answer.states) == [SEALED, PENDING, GONE]
    assert owners(out) == [["a"], [], []]
    assert (list(answer.epochs), list(answer.requests)) == ([A1], ["tcp://a:1"])


def test_the_askers_own_pages_do_not_count() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    assert list(located(script.locate(K[:1], asker="a")).states) == [GONE]


def test_at_most_two_owners_and_the_fuller_one_first() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED, K[1]: SEALED})
    script.up("c", 0xC1, {K[0]: SEALED})
    [first, second], other = owners(script.locate(K[:2]))
    assert first == "b" and second in "ac" and other == ["b"]


def test_equal_owners_take_turns() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    firsts = {owners(script.locate(K[:1]))[0][0] for _ in range(4)}
    assert firsts == {"a", "b"}


def test_a_suspect_owner_comes_last() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.feed(Tick(), 0.9)
    script.hello("b", B1, after=0.5)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]]
    script.hello("a", A1)
    assert owners(script.locate(K[:2])) == [["a", "b"], ["a"]]


def test_an_owner_that_has_it_in_memory_comes_before_one_that_has_it_on_disk() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED}, DISK)
    script.up("b", B1, {K[0]: SEALED, K[2]: SEALED})
    for _ in range(3):
        assert owners(script.locate(K[:3])) == [["b", "a"], ["a"], ["b"]], "whoever's turn it is"
    script.hello("b", B1, reads=1000, leased=900)
    assert owners(script.locate(K[:1])) == [["b", "a"]], "and however loaded"
    script.hello("b", B1, draining=True)
    assert owners(script.locate(K[:1])) == [["a", "b"]], "but not if it is about to go"


def test_unknown_and_not_expected_is_answered_at_once() -> None:
    script = Script()
    script.up("a", A1)
    assert list(located(script.locate(K[:2])).states) == [GONE], "what follows the hole is of no use"
    assert not len(script.state.waiters)


def test_an_answer_ends_with_the_first_hole() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING, K[3]: SEALED})
    assert list(located(script.locate(K[:4])).states) == [SEALED, PENDING, GONE]
    assert list(located(script.locate(K[:4], holes=True)).states) == [SEALED, PENDING, GONE, SEALED]
    assert list(located(script.locate(K[2:4])).states) == [GONE], "no prefix at all"


def test_tails_are_alternatives_and_make_no_hole() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[3]: SEALED})
    assert list(located(script.locate([K[0], K[2], K[3]], tails=2)).states) == [SEALED, GONE, SEALED]
    assert owners(script.locate([K[2], K[3]], tails=2)) == [[], ["a"]]
    assert owners(script.locate([K[2], K[3]], tails=9)) == [[], ["a"]], "more than there are"


@pytest.mark.parametrize("full", [_STAGE - 1, 17 * _STAGE - 1, 17 * _STAGE])
def test_tails_are_looked_up_wherever_a_stage_ends(full: int) -> None:
    script = Script()
    many = [b"full-%08d" % n for n in range(full)]
    script.up("a", A1, dict.fromkeys([*many, b"tail-00000002"], SEALED))
    states = located(script.locate([*many, b"tail-00000001", b"tail-00000002"], tails=2)).states
    assert states[-2:] == bytes((GONE, SEALED)) and len(states) == full + 2


def test_a_hole_far_down_ends_the_look_up() -> None:
    script = Script()
    keys = [b"%06d" % n for n in range(10_000)]
    script.up("a", A1, dict.fromkeys(keys[:3000] + keys[3001:], SEALED))
    answer = located(script.locate(keys))
    assert answer.states == bytes([SEALED]) * 3000 + bytes([GONE])
    assert answer.width == 1, "no key has a second owner"
    assert answer.owners[-1] == NO_OWNER and set(answer.owners[:-1]) == {0}
    whole = located(script.locate(keys, holes=True))
    assert whole.states == bytes([SEALED]) * 3000 + bytes([GONE]) + bytes([SEALED]) * 6999


def test_as_many_owners_are_told_as_are_wanted() -> None:
    script = Script()
    for number, node in enumerate("abcd"):
        script.up(node, A1 + number, {K[0]: SEALED})
    for width, told in ((0, 2), (1, 1), (3, 3), (16, 4)):
        [row] = owners(script.feed(Asked("l", Locate("", K[:1], 0, False, width=width))))
        assert len(row) == told == len(set(row))


def test_the_less_loaded_owner_comes_first() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.hello("a", A1, reads=9)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]], "though it holds less"
    script.hello("b", B1, reads=8, leased=100)
    assert owners(script.locate(K[:2])) == [["a", "b"], ["a"]], "9 and 8 + 1 are one class"
    script.hello("a", A1, reads=0, leased=900)
    script.hello("b", B1, reads=0, leased=100)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]]


def test_an_owner_that_drains_comes_last() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.hello("a", A1, draining=True)
    script.hello("b", B1, reads=99)
    for _ in range(3):
        assert owners(script.locate(K[:1])) == [["b", "a"]]


def test_no_keys_are_answered_at_once() -> None:
    assert located(Script().locate([], expected=True)).states == b""
