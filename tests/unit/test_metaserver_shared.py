"""A metaserver over a store, as scripts: what the property test of the shared catalogue found, each as the case it was."""

from __future__ import annotations

from pegaflow.common.wire.messages.catalogue import GONE, Bye, Hello, Locate, Located
from pegaflow.services.metaserver.commands import Command, Look, Reply
from pegaflow.services.metaserver.events import Asked, Claimed, Event, Looked, Record, Tick
from pegaflow.services.metaserver.shared import SharedState

KEY = b"key"


def test_a_node_says_bye_while_a_locate_waits_for_what_it_may_seal() -> None:
    state = SharedState(99, lambda: 0.1)

    def feed(event: Event, now: float) -> list[Command]:
        out = state.handle(event, now)
        state.validate()
        return out

    feed(Asked("h", Hello("a", 7, "tcp://a:1", "tcp://a:2", "tcp://a:3", "1")), 1.0)
    feed(Claimed("a", 7, False, False, Record(7, "a:1", 0)), 1.0)
    [look] = feed(Asked("l", Locate("me", [KEY], 1000, True, 0, True)), 1.0)
    assert isinstance(look, Look) and look.generations == ("a:1",)
    assert not feed(Looked(look.ticket, [[None]]), 1.0), "expected: it waits"
    assert not [c for c in feed(Asked("b", Bye("a", 7)), 1.1) if isinstance(c, Look)], "nobody is left to look at"
    [answer] = [c.message for c in feed(Tick(), 2.1) if isinstance(c, Reply)]
    assert isinstance(answer, Located) and list(answer.states) == [GONE]
