"""When a tier is silent, as its engine's link sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.connector.silence import SILENT_S, Silence

BEAT_S = 0.5


class Looks:
    """A link's looks, whoever answers its pings."""

    def __init__(self) -> None:
        self.now, self.asked = 100.0, 0
        self.others = 0
        self._answered: Callable[[Any], None]
        self.rpc = SimpleNamespace(send=self._send, peer_epoch=7)
        self.silence = Silence(cast(RpcClient, self.rpc), 1.0, lambda: self.now, self._another)
        self.silence.heard()
        self.look(0.0)

    def _send(self, _message: Any, _timeout_s: float, answered: Callable[[Any], None]) -> None:
        self.asked += 1
        self._answered = answered

    def _another(self) -> None:
        self.others += 1

    def look(self, after_s: float = BEAT_S) -> bool:
        self.now += after_s
        self.silence.look(7)
        return self.silence.suspended

    def answers(self, epoch: int) -> None:
        self.rpc.peer_epoch = epoch
        self._answered(None)


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_a_tier_that_says_nothing_is_suspended_and_asked_once_until_it_speaks(looks: Looks) -> None:
    assert [looks.look() for _ in range(4)] == [False, False, True, True]
    assert looks.asked == 1
    looks.silence.heard()
    assert not looks.silence.suspended and not looks.look()


def test_a_link_that_stood_still_itself_reads_first_what_it_was_told(looks: Looks) -> None:
    assert not looks.look(after_s=5.0), "nothing was read meanwhile, so nothing is known of the tier"
    looks.silence.heard()
    assert not looks.look()


def test_a_tier_that_is_gone_is_found_out_by_a_link_that_stood_still(looks: Looks) -> None:
    looks.look(after_s=5.0)
    assert looks.look() and looks.asked == 1


@pytest.mark.parametrize(("epoch", "others"), [(7, 0), (8, 1)])
def test_whoever_answers_in_another_life_is_another_tier(looks: Looks, epoch: int, others: int) -> None:
    looks.look(after_s=SILENT_S / 2)
    looks.look(after_s=SILENT_S / 2 + 0.1)
    looks.answers(epoch)
    assert looks.others == others
    assert not looks.silence.asking
