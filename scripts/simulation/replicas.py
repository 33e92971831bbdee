"""A tier's way to its metaservers, as services/tier/peers.py has it: all get the hello, one is asked, then the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.catalogue import Hello, HelloAck, Locate
from pegaflow.services.tier.peers import HELLO_BUDGET_S, NUDGE_S

from simulation.world import Asker, World

if TYPE_CHECKING:
    from simulation.metaserver import SimMetaserver


@dataclass(slots=True, eq=False)
class _Replica:
    server: SimMetaserver
    known: bool = False
    heard_at: float = -1.0


@dataclass(slots=True, eq=False)
class _Ask:
    message: Locate
    deadline: float
    on_reply: Callable[[Any], None]
    untried: list[_Replica]
    asked_at: float = 0.0
    tries: int = 0
    over: bool = False


class Replicas:
    """Of one tier, in the order of its configuration."""

    def __init__(self, world: World, servers: Sequence[SimMetaserver]) -> None:
        self._world = world
        self._line = [_Replica(server) for server in servers]

    def tell(self, hello: Hello, leaves: float) -> None:
        for replica in list(self._line):
            self._tell(replica, hello, leaves)

    def _tell(self, replica: _Replica, hello: Hello, leaves: float) -> None:
        world, answered = self._world, False

        def heard(answer: Any) -> None:
            nonlocal answered
            answered, replica.heard_at = True, world.now
            replica.known = isinstance(answer, HelloAck) and answer.known

        def late() -> None:
            if not answered:
                replica.known = False
                self._to_the_end(replica)

        wire = world.hardware.wire
        world.agenda.at(leaves + wire, replica.server.asked, hello, Asker(heard, wire))
        if not replica.server.up or replica.server.core.backlog > 100:
            world.agenda.at(leaves + HELLO_BUDGET_S, late)

    def _to_the_end(self, replica: _Replica) -> None:
        self._line.remove(replica)
        self._line.append(replica)

    def ask(self, message: Locate, leaves: float, on_reply: Callable[[Any], None]) -> None:
        budget = message.wait_ms / 1e3 + 1.0
        self._send(_Ask(message, leaves + budget, on_reply, list(self._line)), message, leaves)

    def _send(self, ask: _Ask, message: Locate, leaves: float) -> None:
        ask.untried.sort(key=self._line.index)
        replica = next((one for one in ask.untried if one.known), ask.untried[0])
        ask.untried.remove(replica)
        ask.asked_at, ask.tries = leaves, ask.tries + 1
        this = ask.tries

        def heard(answer: Any) -> None:
            replica.heard_at = self._world.now
            if ask.tries == this and not ask.over:
                self._answered(ask, replica, message, answer)

        def nudge() -> None:
            if ask.over or ask.tries != this:
                return
            if replica.heard_at < ask.asked_at:
                self._world.agenda.after(NUDGE_S, give_up)
            self._world.agenda.at(ask.deadline, end)

        def give_up() -> None:
            if not ask.over and ask.tries == this and replica.heard_at < ask.asked_at + NUDGE_S:
                heard_nothing = RemoteError(ErrorCode.UNREACHABLE, "silent")
                self._answered(ask, replica, message, heard_nothing)

        def end() -> None:
            if not ask.over and ask.tries == this:
                self._answered(ask, replica, message, RemoteError(ErrorCode.DEADLINE, "late"))

        wire = self._world.hardware.wire
        self._world.agenda.at(leaves + wire, replica.server.asked, message, Asker(heard, wire))
        self._world.agenda.at(leaves + NUDGE_S, nudge)

    def _answered(self, ask: _Ask, replica: _Replica, message: Locate, answer: Any) -> None:
        now = self._world.now
        if isinstance(answer, PegaflowError):
            self._world.tally.count(f"locate_{answer.code}", now)
            if answer.code in (ErrorCode.UNREACHABLE, ErrorCode.DEADLINE):
                replica.known = False
            self._to_the_end(replica)
            if ask.untried and answer.retryable and ask.deadline > now:
                spent = int((now - ask.asked_at) * 1e3)
                self._send(ask, replace(message, wait_ms=max(0, message.wait_ms - spent)), now)
                return
        ask.over = True
        ask.on_reply(answer)
