"""Exactly once and in order, over a channel that loses, reorders and repeats, and a receiver that may start a new life."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pegaflow.common.bus.reliable import Arrival, Numbered, ReceiveCursor, SendWindow

POSITION = st.integers(0, 100)


class Channel(RuleBasedStateMachine):
    """`flying` and `acks` are bags: anything in them may arrive next, more than once, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.window = SendWindow(messages=6, max_bytes=60)
        self.cursor = ReceiveCursor(1)
        self.flying: list[Numbered] = []
        self.acks: list[int] = []
        self.accepted: list[bytes] = []
        self.applied: list[bytes] = []
        self.count = 0

    @rule(size=st.integers(1, 30), must=st.booleans())
    def push(self, size: int, must: bool) -> None:
        self.count += 1
        body = b"%d" % self.count + bytes(size)
        room = self.window.has_room(len(body))
        seq = self.window.push("k", body, must=must)
        assert (seq is not None) == (room or must)
        if seq is not None:
            self.accepted.append(body)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.06, 1.0]))
    def send(self, seconds: float) -> None:
        self.now += seconds
        self.flying += self.window.due(self.now)

    @precondition(lambda self: self.flying)
    @rule(position=POSITION, stays=st.booleans())
    def arrive(self, position: int, stays: bool) -> None:
        i = position % len(self.flying)
        message = self.flying[i] if stays else self.flying.pop(i)
        if self.cursor.arrive(message.seq) is Arrival.APPLY:
            self.applied.append(message.body)
        self.acks.append(self.cursor.next)

    @precondition(lambda self: self.flying)
    @rule(position=POSITION)
    def lose(self, position: int) -> None:
        del self.flying[position % len(self.flying)]

    @precondition(lambda self: self.acks)
    @rule(position=POSITION, stays=st.booleans())
    def acknowledge(self, position: int, stays: bool) -> None:
        i = position % len(self.acks)
        self.window.ack(self.acks[i] if stays else self.acks.pop(i), self.now)

    @rule()
    def receiver_starts_a_new_life(self) -> None:
        """Messages and acknowledgements name the life they belong to, so old ones are not mistaken for new ones."""
        self.flying.clear()
        self.acks.clear()
        self.window.discard()
        self.cursor = ReceiveCursor(self.window.oldest)
        self.accepted.clear()
        self.applied.clear()

    @invariant()
    def in_order_without_holes_or_repetitions(self) -> None:
        self.window.validate()
        assert self.applied == self.accepted[: len(self.applied)]
        assert self.window.oldest <= self.cursor.next <= self.window.next_seq, "nothing is forgotten before it was applied"

    def teardown(self) -> None:
        """Once the channel works, everything arrives."""
        for _ in range(4):
            self.send(1.0)
            while self.flying:
                self.arrive(0, False)
            while self.acks:
                self.acknowledge(0, False)
        assert self.applied == self.accepted
        assert len(self.window) == 0 and self.window.next_due() is None


Channel.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestChannel = Channel.TestCase
