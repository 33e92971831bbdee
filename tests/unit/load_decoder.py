"""One request at an engine, whose pages a tier holds, driven through a `LoadTracker`. Block size 16."""

from __future__ import annotations

from array import array

from pegaflow.connector.load_plan import load_plan
from pegaflow.connector.load_tracker import Ask, Command, LoadTracker, Match, Release
from pegaflow.connector.session import LeaseRef, LookupAnswer, SessionId

BLOCK = 16
SESSION = SessionId(7, 1)
LATER = SessionId(8, 1)
LEASE = LeaseRef(SESSION, 5)
TABLE = list(range(200, 210))


class Decoder:
    """One request at an engine, and a tier that holds some pages: full blocks by index, tails by ids covered."""

    def __init__(
        self,
        ids: int,
        stored: set[int] | None = None,
        tails: set[int] | None = None,
        *,
        strict: bool = False,
        shards: int = 1,
        prompt: int | None = None,
    ) -> None:
        self.tracker = LoadTracker(BLOCK, shards, strict, patience_s=6.0)
        self.ids = ids
        self.prompt = ids if prompt is None else prompt
        self.stored = stored or set()
        self.tails = tails or set()
        self.now = 0.0
        self.session: SessionId | None = SESSION
        self.given: list[LeaseRef] = []
        self.released: list[LeaseRef] = []
        self.asks = 0
        self.lease = LEASE

    def ask(self, first: int = 0) -> list[Command]:
        plan = load_plan(
            prompt=self.prompt, known=self.ids, block_size=BLOCK, first=first, tails=True, strict=self.tracker.strict
        )
        commands = self.tracker.asked("r", self.prompt, self.version, plan, self.now)
        self.tracker.validate()
        self.apply(commands)
        return commands

    def apply(self, commands: list[Command] | tuple[Command, ...]) -> None:
        self.released += [command.lease for command in commands if isinstance(command, Release)]
        self.asks += sum(isinstance(command, Ask) for command in commands)

    def has(self, ids: int) -> bool:
        """Whether the tier holds the page that ends with this many ids."""
        return ids in self.tails or (ids % BLOCK == 0 and ids // BLOCK - 1 in self.stored)

    @property
    def version(self) -> tuple[int, bytes]:
        return self.ids, b"%d" % (self.ids // BLOCK)

    def answer(self, ask: Ask, code: str = "") -> list[Command]:
        plan = ask.plan
        full = 0
        while plan.first + full < plan.last and plan.first + full in self.stored:
            full += 1
        tail = -1
        if plan.first + full == plan.last:
            there = [i for i, end in enumerate(plan.tails) if self.has(end)]
            tail = there[0] if there else -1
        if code:
            full, tail = 0, -1
        pages = (full + (tail >= 0)) * self.tracker.shards
        lease = self.lease if pages else None
        self.given += [] if lease is None else [lease]
        answer = LookupAnswer(
            ask.lookup, lease, full, tail, array("I", range(pages)), array("Q", range(50, 50 + pages)), b"\0" * full, code
        )
        commands = self.tracker.answered(answer)
        self.tracker.validate()
        self.apply(commands)
        return commands

    def match(self, computed: int = 0) -> Match:
        match = self.tracker.matched("r", self.version, computed, self.session, self.now)
        self.tracker.validate()
        self.apply(match.commands)
        return match

    def allocate(self, tokens: int) -> list[Command]:
        commands = self.tracker.allocated("r", tokens, TABLE)
        self.tracker.validate()
        self.apply(commands)
        return commands

    def receive(self, failed: bool = False) -> list[Command]:
        commands = self.tracker.received("r", failed)
        self.tracker.validate()
        self.apply(commands)
        return commands

    def finish(self) -> list[Command]:
        commands = self.tracker.finished("r")
        self.tracker.validate()
        self.apply(commands)
        return commands

    def lookup(self, first: int = 0) -> None:
        ask = self.ask(first)[-1]
        assert isinstance(ask, Ask)
        self.answer(ask)
