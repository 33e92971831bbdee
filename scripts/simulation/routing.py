"""The router: the real choice (`choose`), the real memory of prefixes, and the locator's question with its wait.

Its own core is not modelled (scripts/bench/router prints how many requests one carries), and any number of routers may run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pegaflow.common.wire.messages.catalogue import Locate, Located
from pegaflow.services.router.affinity import Marks, PrefixMemory
from pegaflow.services.router.locator import PAUSE_S, WIDTH
from pegaflow.services.router.policy import Candidate, Policy, choose
from pegaflow.services.router.schemes import MAX_IDS

from simulation.engines import DecodeEngine, PrefillEngine
from simulation.metaserver import SimMetaserver
from simulation.request import Request
from simulation.world import Asker, World

LOCATE_WAIT_S = 0.005


class _Side:
    """Engines of one role."""

    def __init__(self, engines: Sequence[PrefillEngine | DecodeEngine]) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self._load = dict.fromkeys(self.engines, 0)
        self._turns = dict.fromkeys(self.engines, 0)
        self._sent = PrefixMemory()
        self._turn = 0

    def pick(self, policy: Policy, marks: Marks, held: Mapping[str, int]) -> str:
        held = held or self._sent.held(marks)
        candidates = [Candidate(name, load, self._turns[name], held.get(name, 0)) for name, load in self._load.items()]
        name = choose(policy, candidates, frozenset())
        assert name is not None
        self._sent.sent(marks, name)
        self._turn += 1
        self._turns[name] = self._turn
        self._load[name] += 1
        return name

    def release(self, name: str) -> None:
        self._load[name] -= 1


class SimRouter:
    """`finished` is told when a request has its last token."""

    def __init__(
        self, world: World, policy: Policy, metaservers: Sequence[SimMetaserver], finished: Callable[[Request], None]
    ) -> None:
        self._world, self._policy, self._metaservers, self._finished = world, policy, metaservers, finished
        self._prefill: _Side
        self._decode: _Side
        self._paused_until = 0.0
        self.open = 0

    def engines(self, prefill: Sequence[PrefillEngine], decode: Sequence[DecodeEngine]) -> None:
        self._prefill, self._decode = _Side(prefill), _Side(decode)

    def arrived(self, request: Request) -> None:
        self.open += 1
        request.prefill = self._prefill.pick(self._policy, self._marks(request), {})
        self._world.agenda.after(self._world.hardware.wire, self._prefill.engines[request.prefill].take, request)

    def answered(self, request: Request) -> None:
        """P has the first token; which decode engine has most of the prompt?"""
        self._prefill.release(request.prefill)
        self._world.tally.span("ttft", request.arrived, self._world.now)
        wire, now = self._world.hardware.wire, self._world.now
        keys = request.session.keys(min(request.prompt, MAX_IDS) // self._world.model.block)
        if len(self._decode.engines) < 2 or not keys or now < self._paused_until:
            self._to_decode(request, {})
            return
        over = False

        def found(held: Mapping[str, int], why: str) -> None:
            nonlocal over
            if over:
                return
            over = True
            self._world.tally.count(f"router_{why}", now)
            if why == "late":
                self._paused_until = self._world.now + PAUSE_S
            self._to_decode(request, held)

        def located(answer: Any) -> None:
            held = _pages(answer) if isinstance(answer, Located) else {}
            found(held, "found" if held else "nowhere")

        question = Locate("", keys, 0, False, width=WIDTH)
        server = self._metaservers[request.number % len(self._metaservers)]
        self._world.agenda.after(wire, server.asked, question, Asker(located, wire))
        self._world.agenda.after(LOCATE_WAIT_S, found, {}, "late")

    def _to_decode(self, request: Request, held: Mapping[str, int]) -> None:
        request.decode = self._decode.pick(self._policy, self._marks(request), held)
        self._world.agenda.after(self._world.hardware.wire, self._decode.engines[request.decode].take, request)

    def ended(self, request: Request) -> None:
        self._decode.release(request.decode)
        self.open -= 1
        self._finished(request)

    def _marks(self, request: Request) -> Marks:
        return request.session.marks(request.prompt) if self._policy is Policy.PREFIX else ()


def _pages(answer: Located) -> dict[str, int]:
    """Decode engine → pages at its tier. A node's engine is known by the node's name."""
    counts = Counter(answer.owners)
    return {f"d-{node}": counts[number] for number, node in enumerate(answer.nodes) if counts[number] and node.startswith("d")}
