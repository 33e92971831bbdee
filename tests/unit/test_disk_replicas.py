"""Pages of other tiers do not go to disk while their owner is known to have them."""

from __future__ import annotations

import pytest
from disk_script import DiskScript
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.catalogue import GONE, SEALED, Located
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.services.tier import commands, events
from tier_script import checksum, key, only, pinned

B = "b"


def asked(script: DiskScript, number: int, epoch: int) -> commands.PinAt:
    """A page that the metaserver says is b's, in its life `epoch`: up to the question to b."""
    script.lookup([number])
    ask = only(commands.Locate, script.last)
    named = Located(bytes([SEALED]), 1, u32s([0]), [B], u64s([epoch]), ["tcp://b"])
    pin = only(commands.PinAt, script.feed(events.LocateAnswer(ask.ask, named)))
    assert isinstance(pin, commands.PinAt)
    return pin


def fetched(script: DiskScript, numbers: list[int], epoch: int = 5) -> None:
    for number in numbers:
        pin = asked(script, number, epoch)
        read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, pinned(pin, [checksum("there")]), script.now)))
        job = only(commands.Hash, script.feed(events.ReadEnded(read.fetch, "done")))
        out = script.feed(events.Hashed(job.job, [checksum("there")]))
        (answer,) = [one.message for one in out if isinstance(one, commands.Reply) and isinstance(one.message, Hits)]
        script.release(answer)
    assert set(numbers) <= script.sealed()


def pushed_out(script: DiskScript, numbers: list[int]) -> None:
    script.fill(range(100, 124))
    assert not set(numbers) & script.sealed()


def test_a_replica_is_evicted_and_not_written() -> None:
    script = DiskScript(metaserver=True)
    fetched(script, [1, 2, 3])
    pushed_out(script, [1, 2, 3])
    assert not {1, 2, 3} & script.on_disk() and script.on_disk()
    assert script.tier.counts["disk_left_to_owner"] == 3 and script.tier.counts["disk_not_stored"] == 0
    assert script.heard[key(1)][0] == GONE and script.quiet()


@pytest.mark.parametrize("how", ["another life is named", "a pin fails"])
def test_a_replica_whose_owner_may_have_lost_it_is_written(how: str) -> None:
    script = DiskScript(metaserver=True)
    fetched(script, [1, 2, 3])
    if how == "a pin fails":
        pin = asked(script, 4, 5)
        script.feed(events.PinAnswer(pin.fetch, RemoteError("unreachable", "b is gone"), script.now))
        mine: set[int] = set()
    else:
        fetched(script, [4], epoch=6)
        mine = {4}
    pushed_out(script, [1, 2, 3, 4])
    assert {1, 2, 3} <= script.on_disk() and not mine & script.on_disk()
    assert script.tier.counts["disk_left_to_owner"] == len(mine)


def test_a_page_that_an_engine_here_has_saved_as_well_is_still_a_replica() -> None:
    """`have` is said of it: its bytes came from its owner, who has them."""
    script = DiskScript(metaserver=True)
    fetched(script, [1])
    script.intent([1])
    script.tick(11.0)
    pushed_out(script, [1])
    assert 1 not in script.on_disk()
