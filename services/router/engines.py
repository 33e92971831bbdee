"""The engines the router knows, their health, their load, and what was learnt about them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pegaflow.common import clock
from pegaflow.services.router.affinity import Marks, PrefixMemory, marks
from pegaflow.services.router.breaker import Breaker, BreakerSettings, BreakerState
from pegaflow.services.router.openai import ClientRequest, Json
from pegaflow.services.router.policy import Candidate, Policy, choose
from pegaflow.services.router.steps import EngineFacts, Role, Verdict


@dataclass(slots=True, eq=False)
class Engine:
    """One engine; its name is its base URL. `healthy` is None until it was checked for the first time; `why`: why it is not.

    `slow_checks`: health checks in a row without an answer in time. `removed`: only its open requests keep it.
    """

    name: str
    role: Role
    breaker: Breaker
    healthy: bool | None = None
    why: str = ""
    load: int = 0
    turn: int = 0
    slow_checks: int = 0
    removed: bool = False
    chat_ids: bool | None = None
    models: list[Json] = field(default_factory=list)

    @property
    def model_length(self) -> int | None:
        """The smallest `max_model_len` of its models, which share one engine; None where none is told."""
        told = [model["max_model_len"] for model in self.models if isinstance(model.get("max_model_len"), int)]
        return min(told, default=None)


class Change(NamedTuple):
    added: list[str]
    removed: list[str]


class Engines:
    """Owned by the event loop. Engines of one role are interchangeable."""

    def __init__(
        self,
        listed: Mapping[Role, Iterable[str]],
        *,
        policy: Policy = Policy.LEAST_LOADED,
        breaker: BreakerSettings | None = None,
        now: Callable[[], float] = clock.now,
    ) -> None:
        self._breaker = breaker or BreakerSettings()
        self._now = now
        self._policy = policy
        self._sent = {role: PrefixMemory() for role in Role}
        self._engines: dict[tuple[Role, str], Engine] = {}
        self._leaving: list[Engine] = []  # removed, with requests that are open there
        self._turn = 0
        self.roles = frozenset(listed)
        self.changed: Callable[[], None] = lambda: None
        self.admit: Callable[[str], None] = lambda name: None  # raises ValueError for one that must not be connected to
        self.become(listed)

    # Membership

    def add(self, role: Role, name: str) -> bool:
        """False: it is there already. It is not picked before it was found healthy. Raises ValueError if not admitted."""
        assert role in self.roles
        if (role, name) in self._engines:
            return False
        self.admit(name)
        self._engines[role, name] = Engine(name, role, Breaker(self._breaker))
        self.changed()
        return True

    def remove(self, role: Role, name: str) -> bool:
        """It is not picked any more; what is open there goes on, and gives it back. False: there is none of that name."""
        engine = self._engines.pop((role, name), None)
        if engine is None:
            return False
        engine.removed = True
        if engine.load:
            self._leaving.append(engine)
        self.changed()
        return True

    def become(self, listed: Mapping[Role, Iterable[str]]) -> Change:
        """Exactly these engines; those that stay keep what is known of them. Raises ValueError, and then changes nothing."""
        wanted = [(role, name) for role, names in listed.items() for name in names]
        gone = [known for known in self._engines if known not in wanted]
        new = [one for one in wanted if one not in self._engines]
        for _, name in new:
            self.admit(name)
        for role, name in gone:
            self.remove(role, name)
        for role, name in new:
            self.add(role, name)
        return Change([name for _, name in new], [name for _, name in gone])

    def names(self, role: Role) -> list[str]:
        return [engine.name for engine in self._engines.values() if engine.role is role]

    def view(self) -> list[Json]:
        """For people. An engine that was removed stands there until its last request has ended: then it may be stopped."""
        return [
            {
                "role": engine.role,
                "url": engine.name,
                "healthy": engine.healthy,
                "breaker": self.breaker(engine),
                "requests": engine.load,
                "leaving": engine.removed,
                "models": [model.get("id") for model in engine.models],
                "why": engine.why,
            }
            for engine in [*self._engines.values(), *self._leaving]
        ]

    # Choice

    def all(self) -> list[Engine]:
        return list(self._engines.values())

    def marks(self, request: ClientRequest) -> Marks:
        """What :meth:`pick` needs of a request."""
        return marks(request) if self._policy is Policy.PREFIX else ()

    def pick(self, role: Role, avoid: frozenset[str], prompt: Marks = (), held: Mapping[str, int] | None = None) -> Engine | None:
        """Choose a healthy engine whose breaker lets it and count it as loaded until :meth:`release`; None: there is none.

        `held`: what is known for certain of the prompt's pages at engines, in any unit.
        """
        now = self._now()
        held = held or self._sent[role].held(prompt)
        candidates = [
            Candidate(engine.name, engine.load, engine.turn, held.get(engine.name, 0))
            for engine in self._engines.values()
            if engine.role is role and engine.healthy and engine.breaker.allows(now)
        ]
        name = choose(self._policy, candidates, avoid)
        if name is None:
            return None
        self._sent[role].sent(prompt, name)
        engine = self._engines[role, name]
        self._turn += 1
        engine.turn = self._turn
        engine.load += 1
        engine.breaker.picked()
        return engine

    def release(self, engine: Engine, verdict: Verdict) -> None:
        """A flow is done with what it picked."""
        assert engine.load > 0, f"{engine.name} was released more often than picked"
        engine.load -= 1
        if engine.removed and not engine.load:
            self._leaving.remove(engine)
        engine.breaker.record(verdict, self._now())
        if verdict is Verdict.DEAD:
            self.mark(engine, healthy=False, why="a request found nobody there")

    def breaker(self, engine: Engine) -> BreakerState:
        return engine.breaker.state(self._now())

    def mark(self, engine: Engine, *, healthy: bool, why: str = "") -> None:
        """What a check, or a failed connection, showed; `why` it is not healthy."""
        if not healthy:
            # What comes back may be another version: look again how it takes ids.
            engine.chat_ids = None
            engine.models = []
            engine.breaker.reset()
        engine.healthy, engine.why = healthy, why

    def models(self) -> list[Json]:
        """The models of all healthy engines, each id once."""
        found: dict[object, Json] = {}
        for engine in self._engines.values():
            if engine.healthy:
                for model in engine.models:
                    found.setdefault(model.get("id"), model)
        return list(found.values())

    def missing(self) -> list[Role]:
        """The roles of which no engine is healthy."""
        served = {engine.role for engine in self._engines.values() if engine.healthy}
        return sorted(self.roles - served)


def facts(engine: Engine) -> EngineFacts:
    return EngineFacts(engine.name, engine.chat_ids, engine.model_length)
