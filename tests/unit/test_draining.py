"""A tier that drains: what it still does, and how its pages get to others when it leaves for good."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.codec import decode_body, encode_body
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import RemoteError, WireError
from pegaflow.common.wire.messages.attach import Attached
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, SEALED, Located, NodeList
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.saves import GRANTED, HAVE, REFUSED
from pegaflow.common.wire.messages.transfer import Pin, Pinned, Take, Taken
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.adoption import Remains
from pegaflow.services.tier.commands import AskNodes, Locate, Offer, PinAt
from pegaflow.services.tier.node_rest import DrainMark
from tier_script import EPOCH, Script, checksum, key, only, pinned

NODES = {"a": EPOCH, "b": 5, "c": 6}


def drained(script: Script, hand_over: bool = False) -> Script:
    script.tier.draining.begin(hand_over)
    return script


def test_nothing_new_is_granted_and_what_is_here_is_served() -> None:
    script = Script().engine()
    script.save([1, 2])
    drained(script)
    grant = script.intent([1, 2, 3])
    assert list(grant.statuses) == [HAVE, HAVE, REFUSED] and not grant.positions
    assert script.tier.counts["refused_draining"] == 1
    found = script.lookup([1, 2])
    assert isinstance(found, Hits) and found.full == 2
    assert isinstance(script.ask(Pin("b", [key(1)], 1, 1000)), Pinned)
    assert isinstance(script.attach("other"), Attached), "engines that start anew still load"
    script.tier.draining.end()
    assert list(script.intent([3]).statuses) == [GRANTED]


def test_what_was_granted_before_is_sealed_and_only_then_it_is_quiet() -> None:
    script = Script().engine()
    grant = script.intent([1])
    drained(script)
    assert not script.tier.draining.quiet
    script.hashed(script.word(grant))
    assert script.sealed() == {1} and script.tier.draining.quiet


def test_a_draining_tier_still_fetches_for_its_engines() -> None:
    script = drained(Script(metaserver=True).engine())
    script.lookup([1], expected=True)
    assert only(Locate, script.last).keys == [key(1)]


def test_nobody_hands_over_without_a_metaserver() -> None:
    with pytest.raises(RemoteError, match="unsupported"):
        Script().tier.draining.begin(True)


class Others:
    """Answers a tier that hands over. `has`: who has which key; `takes`: how many a node takes, None: an error."""

    def __init__(self, script: Script, takes: dict[str, int | None]) -> None:
        self.script, self.takes = script, takes
        self.states = ["up", "up", "draining"]
        self.holder = "b"
        self.has: dict[bytes, str] = {}
        self.offers: list[tuple[str, list[bytes]]] = []

    def round(self) -> None:
        self.script.now += 0.5
        todo = self.script.feed(events.Tick())
        while todo:
            todo = [more for command in todo for more in self._answer(command)]

    def until_done(self, rounds: int = 200) -> dict[str, Any]:
        for _ in range(rounds):
            self.round()
            view = self.script.tier.draining.handover.view()
            if view["done"]:
                return view
        raise AssertionError(view)

    def _answer(self, command: commands.Command) -> Iterator[commands.Command]:
        match command:
            case AskNodes(job):
                names, none = list(NODES), ["x"] * len(NODES)
                ends = [f"tcp://{name}" for name in names]
                zeros = u64s([0] * len(names))
                answer = NodeList(names, u64s(NODES.values()), self.states, ends, none, none, zeros, zeros)
                yield from self.script.feed(events.NodesAnswer(job, answer))
            case Locate(ask, keys, _, _, _, holes):
                assert holes
                states = bytes(SEALED if name in self.has else GONE for name in keys)
                owners = u32s(0 if name in self.has else NO_OWNER for name in keys)
                found = Located(states, 1, owners, [self.holder], u64s([NODES[self.holder]]), [f"tcp://{self.holder}"])
                yield from self.script.feed(events.LocateAnswer(ask, found))
            case Offer(job, endpoint, _, keys, lengths):
                node = endpoint.removeprefix("tcp://")
                self.offers.append((node, list(keys)))
                assert tuple(lengths) == (GRANULE,)
                takes = self.takes[node]
                if takes is None:
                    yield from self.script.feed(events.TakeAnswer(job, RemoteError("unreachable", "gone")))
                    return
                taken = list(keys)[:takes]
                self.takes[node] = takes - len(taken)
                self.has |= dict.fromkeys(taken, node)
                yield from self.script.feed(events.TakeAnswer(job, Taken(len(taken))))


def handing_over(numbers: list[int], takes: dict[str, int | None]) -> Others:
    script = Script(metaserver=True).engine()
    for number in numbers:
        script.save([number], request=f"r{number}")
    return Others(drained(script, hand_over=True), takes)


def test_pages_that_nobody_else_has_are_offered_most_recently_used_first() -> None:
    others = handing_over([1, 2, 3], {"b": 100})
    others.has[key(2)] = "b"
    view = others.until_done()
    assert others.offers == [("b", [key(3), key(1)])]
    assert (view["handed_over"], view["had_elsewhere"], view["left_behind"], view["left"]) == (2, 1, 0, 0)


def test_what_fits_nowhere_stays_behind_and_is_counted() -> None:
    view = handing_over([1, 2, 3], {"b": 2}).until_done()
    assert (view["handed_over"], view["left_behind"]) == (2, 1)


def test_a_node_that_does_not_answer_takes_nothing() -> None:
    others = handing_over([1], {"b": None})
    view = others.until_done()
    assert (view["handed_over"], view["left_behind"]) == (0, 1)
    assert len(others.offers) > 1, "an error says nothing of room"


def test_a_node_that_answers_again_in_time_gets_what_it_was_offered() -> None:
    others = handing_over([1, 2], {"b": None})
    for _ in range(4):
        others.round()
    others.takes["b"] = 100
    assert others.until_done()["handed_over"] == 2


def test_while_a_metaserver_knows_nobody_yet_nothing_stays_behind() -> None:
    others = handing_over([1], {"b": 100})
    others.states = ["up", "syncing", "syncing"]
    for _ in range(10):
        others.round()
    assert others.script.tier.draining.handover.view()["left"] == 1
    others.states = ["up", "up", "up"]
    assert others.until_done()["handed_over"] == 1


def test_a_copy_at_a_node_that_leaves_too_is_none() -> None:
    others = handing_over([1], {"b": 100})
    others.has[key(1)] = others.holder = "c"
    others.round()
    assert others.offers == [("b", [key(1)])]
    others.holder = "b"
    assert others.until_done()["handed_over"] == 1


def test_it_is_not_done_before_the_pages_of_the_life_before_are_known() -> None:
    script = Script(metaserver=True, remains=Remains(floor=1, slabs={0: 1})).engine()
    others = Others(drained(script, hand_over=True), {"b": 100})
    others.round()
    assert not script.tier.draining.handover.done
    script.feed(events.SlabFound(0, 1, []))
    script.feed(events.SlabsEnded())
    assert others.until_done()["handed_over"] == 0
    script.tier.draining.end()
    script.save([1])
    drained(script, hand_over=True)
    assert others.until_done()["handed_over"] == 1, "asked again, it looks again"


def test_who_said_yes_and_does_not_get_it_is_not_asked_for_ever() -> None:
    others = handing_over([1], {"b": 10_000})
    others.has = {}

    class Forgets(dict[bytes, str]):
        def __ior__(self, other: Any) -> Forgets:  # type: ignore[override,misc]
            return self

    others.has = Forgets()
    view = others.until_done()
    assert (view["handed_over"], view["left_behind"]) == (0, 1)
    assert len(others.offers) > 1


def test_pages_sealed_while_it_hands_over_go_too() -> None:
    script = Script(metaserver=True).engine()
    grant = script.intent([7])
    others = Others(drained(script, hand_over=True), {"b": 100})
    others.round()
    assert not script.tier.draining.handover.done, "a save is open"
    script.hashed(script.word(grant))
    assert others.until_done()["handed_over"] == 1


def test_undrain_ends_it() -> None:
    others = handing_over([1], {"b": 100})
    others.script.tier.draining.end()
    others.round()
    assert not others.offers and not others.script.tier.draining.handover.view()["on"]


def take(numbers: list[int]) -> Take:
    return Take("b", 5, "tcp://b", [key(n) for n in numbers], u32s([GRANULE]))


def arrive(script: Script, pin: PinAt) -> None:
    """The pages come, as they should be."""
    sums = [checksum(f"page {i}") for i in range(len(pin.keys))]
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, pinned(pin, sums), script.now)))
    job = only(commands.Hash, script.feed(events.ReadEnded(read.fetch, "done")))
    script.feed(events.Hashed(job.job, sums))


def test_a_tier_takes_what_is_not_here_as_its_own() -> None:
    script = Script(metaserver=True).engine()
    script.save([1])
    assert script.ask(take([1, 2, 3])) == Taken(3)
    pin = only(PinAt, script.last)
    assert (pin.endpoint, pin.epoch, list(pin.keys)) == ("tcp://b", 5, [key(2), key(3)])
    arrive(script, pin)
    assert script.sealed() == {1, 2, 3}
    page = script.tier.pages.index[key(2)]
    assert not page.replica and not script.tier.fetches.elsewhere(page), "its owner leaves"


def test_a_page_asked_for_twice_is_taken_once_and_replicas_of_who_leaves_are_kept() -> None:
    script = Script(metaserver=True).engine()
    assert script.ask(take([2, 2, 3])) == Taken(3)
    assert list(only(PinAt, script.last).keys) == [key(2), key(3)]


def test_nothing_is_evicted_for_pages_of_others() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(13)))
    assert script.ask(take([20, 21, 1, 22, 23])) == Taken(4)
    assert script.ask(take([23])) == Taken(0)
    assert script.tier.counts["evicted"] == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lengths": u32s()}, "lengths"),
        ({"lengths": u32s([GRANULE, 0])}, "lengths"),
        ({"lengths": u32s([1] * 1025)}, "at most 1024"),
        ({"keys": []}, "keys"),
        ({"keys": [b"k" * 16]}, "17 to 64"),
        ({"keys": [b"k" * 65]}, "1 to 64"),
        ({"node": ""}, "name"),
        ({"epoch": 0}, "epoch"),
        ({"requests": ""}, "endpoint"),
    ],
)
def test_what_nobody_could_fetch_does_not_decode(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_body("take", encode_body(dataclasses.replace(take([1]), **changes)))


def test_the_mark_outlives_a_life_and_says_what_for(tmp_path: Path) -> None:
    mark = DrainMark(tmp_path)
    assert mark.read() is None
    for hand_over in (True, False, True):
        mark.set(hand_over)
        assert DrainMark(tmp_path).read() is hand_over
    assert (tmp_path / "draining").stat().st_mode & 0o777 == 0o600
    mark.clear()
    mark.clear()
    assert mark.read() is None and list(tmp_path.iterdir()) == []


def test_a_draining_tier_takes_nothing() -> None:
    script = drained(Script().engine())
    assert script.ask(take([1])).code == "draining"
