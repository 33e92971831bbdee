"""Reliable publication as scripts: what the publisher repeats and when, what the receiver applies."""

from __future__ import annotations

import pytest
from pegaflow.common.bus.reliable import REPEAT_MAX_S, REPEAT_S, Arrival, Numbered, ReceiveCursor, SendWindow


def push(window: SendWindow, *bodies: bytes) -> list[int | None]:
    seqs = [window.push("k", body) for body in bodies]
    window.validate()
    return seqs


def seqs(due: list[Numbered]) -> list[int]:
    return [message.seq for message in due]


def test_numbers_begin_at_one_and_each_message_goes_out_once_at_first() -> None:
    window = SendWindow()
    assert push(window, b"a", b"b") == [1, 2]
    assert window.due(0.0) == [Numbered(1, "k", b"a"), Numbered(2, "k", b"b")]
    assert window.due(0.0) == []
    assert window.repeated == 0


def test_what_is_not_acknowledged_is_repeated_from_the_oldest() -> None:
    window = SendWindow()
    push(window, b"a", b"b", b"c")
    window.due(0.0)
    assert window.next_due() == REPEAT_S
    assert window.due(REPEAT_S - 0.001) == []
    assert window.ack(2, 0.0) and window.oldest == 2
    assert seqs(window.due(REPEAT_S)) == [2, 3]
    assert window.repeated == 2


def test_the_pause_doubles_up_to_its_limit_and_progress_resets_it() -> None:
    window = SendWindow()
    push(window, b"a", b"b")
    now, pauses = 0.0, []
    window.due(now)
    for _ in range(7):
        due = window.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
        assert seqs(window.due(now)) == [1, 2]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, REPEAT_MAX_S, REPEAT_MAX_S])
    assert window.ack(2, now)
    assert window.next_due() == pytest.approx(now + REPEAT_S)


def test_progress_gives_what_is_left_its_full_pause() -> None:
    window = SendWindow()
    push(window, b"a", b"b")
    window.due(0.0)
    window.ack(2, REPEAT_S - 0.01)
    assert window.due(REPEAT_S) == [], "the second one was on its way while the first was acknowledged"
    assert seqs(window.due(2 * REPEAT_S - 0.01)) == [2]


def test_new_messages_do_not_put_off_the_repetition() -> None:
    window = SendWindow()
    push(window, b"a")
    window.due(0.0)
    push(window, b"b")
    assert seqs(window.due(REPEAT_S / 2)) == [2]
    assert window.next_due() == REPEAT_S
    push(window, b"c")
    assert seqs(window.due(REPEAT_S)) == [1, 2, 3]


def test_an_old_acknowledgement_is_no_progress() -> None:
    window = SendWindow()
    push(window, b"a", b"b")
    assert window.ack(2, 0.0)
    assert not window.ack(2, 0.0) and not window.ack(1, 0.0)
    assert len(window) == 1
    assert window.ack(3, 0.0)
    assert len(window) == 0 and window.oldest == 3 and window.next_due() is None and window.due(9.0) == []
    window.validate()


def test_a_full_window_drops_before_it_numbers() -> None:
    window = SendWindow(messages=2, max_bytes=100)
    assert push(window, b"a", b"b", b"c") == [1, 2, None]
    assert window.push("written", b"d", must=True) == 3
    window.ack(4, 0.0)
    assert push(window, bytes(101)) == [None]
    assert push(window, bytes(60), bytes(41), bytes(40)) == [4, None, 5]


def test_a_new_life_of_the_receiver_voids_the_window_but_numbers_go_on() -> None:
    window = SendWindow()
    push(window, b"a", b"b")
    window.due(0.0)
    window.discard()
    window.validate()
    assert len(window) == 0 and window.oldest == 3 and window.has_room(1)
    assert push(window, b"c") == [3]
    assert seqs(window.due(0.0)) == [3], "it waits for no old pause"


def test_the_receiver_applies_exactly_the_next_one() -> None:
    cursor = ReceiveCursor(5)
    assert [cursor.arrive(seq) for seq in (5, 5, 7, 6, 4, 7)] == [
        Arrival.APPLY,
        Arrival.DUPLICATE,
        Arrival.GAP,
        Arrival.APPLY,
        Arrival.DUPLICATE,
        Arrival.APPLY,
    ]
    assert cursor.next == 8
