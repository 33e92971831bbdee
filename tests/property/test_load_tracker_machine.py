"""The load tracker against a bus and an engine that do their worst, in any order.

Whatever happens, every lease is released exactly once, a claim is never larger than what vLLM can take, a request
whose load failed never claims again, and when all requests are over nothing is left.
"""

from array import array
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pegaflow.connector.load_plan import load_plan
from pegaflow.connector.load_tracker import Ask, Cancel, Command, Load, LoadTracker, Release
from pegaflow.connector.session import LeaseRef, LookupAnswer, SessionId

BLOCK = 4
SHARDS = 2


@dataclass
class Model:
    prompt: int
    known: int
    computed: int = 0
    claim: int = 0
    loading: bool = False
    failed: bool = False


class LoadMachine(RuleBasedStateMachine):
    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.tracker = LoadTracker(BLOCK, SHARDS, self.strict, patience_s=5.0)
        self.alive: dict[str, Model] = {}
        self.dying: set[str] = set()
        self.asks: dict[int, Ask] = {}
        self.leases: dict[LeaseRef, int] = {}
        self.session: SessionId | None = SessionId(1, 1)
        self.now = 0.0
        self.count = 0

    def run(self, commands: list[Command] | tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Ask(lookup):
                    if self.session is None:
                        self.tracker.unanswerable(lookup)
                    else:
                        self.asks[lookup] = command
                case Cancel(lookup):
                    assert lookup in self.asks
                case Release(lease):
                    self.leases[lease] += 1
                    assert self.leases[lease] == 1
                case _:
                    pass

    def version(self, model: Model) -> tuple[int, bytes]:
        return model.known, b"%d" % (model.known // BLOCK)

    def ask(self, name: str, first: int) -> None:
        model = self.alive[name]
        plan = load_plan(prompt=model.prompt, known=model.known, block_size=BLOCK, first=first, tails=True, strict=self.strict)
        self.run(self.tracker.asked(name, model.prompt, self.version(model), plan, self.now))

    @precondition(lambda self: len(self.alive) < 2)
    @rule(prompt=st.integers(1, 14), local=st.integers(0, 3))
    def admit(self, prompt: int, local: int) -> None:
        self.count += 1
        name = f"r{self.count}"
        self.alive[name] = Model(prompt, prompt)
        self.ask(name, min(local, (prompt - 1) // BLOCK))

    @precondition(lambda self: self.asks)
    @rule(full=st.integers(0, 4), tail=st.integers(-1, 2), code=st.sampled_from(["", "", "", "overloaded"]))
    def answer(self, full: int, tail: int, code: str) -> None:
        lookup = min(self.asks)
        plan = self.asks.pop(lookup).plan
        full = min(full, plan.last - plan.first)
        tail = tail if full == plan.last - plan.first and tail < len(plan.tails) else -1
        if code or self.session is None:
            full, tail = 0, -1
        pages = (full + (tail >= 0)) * SHARDS
        lease = None
        if pages and self.session is not None:
            lease = LeaseRef(self.session, len(self.leases) + 1)
            self.leases[lease] = 0
        columns = array("I", range(pages)), array("Q", range(pages))
        self.run(self.tracker.answered(LookupAnswer(lookup, lease, full, tail, *columns, b"\0" * full, code)))

    def pick(self, which: int) -> str:
        """One of the requests that are alive: they are few at a time, so that long stories happen to each."""
        return sorted(self.alive)[which % len(self.alive)]

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 1), local=st.integers(0, 3), fits=st.booleans())
    def schedule(self, which: int, local: int, fits: bool) -> None:
        """vLLM considers a waiting request; `fits`: it finds blocks for it."""
        name = self.pick(which)
        model = self.alive[name]
        if model.loading or model.computed:
            return
        computed = min(local, (model.known - 1) // BLOCK) * BLOCK
        match = self.tracker.matched(name, self.version(model), computed, self.session, self.now)
        self.run(match.commands)
        assert not (match.ask and model.failed)
        if match.ask:
            self.ask(name, computed // BLOCK)
            return
        if match.tokens is None:
            return
        assert 0 <= match.tokens <= model.known - 1 - computed or match.tokens == 0
        if model.failed:
            assert match.tokens == 0
        if self.strict and not model.failed and match.tokens + computed < model.prompt - 1:
            raise AssertionError("a prompt position would be computed")
        if not fits:
            return
        table = list(range(10, 10 + -(-model.known // BLOCK)))
        commands = self.tracker.allocated(name, match.tokens, table)
        self.run(commands)
        loads = [command for command in commands if isinstance(command, Load)]
        assert len(loads) == (match.tokens > 0)
        for load in loads:
            model.loading = True
            first, last = computed // BLOCK, -(-(computed + match.tokens) // BLOCK)
            assert load.blocks == tuple(table[first:last])
            assert bool(load.refuse) == (load.lease is None)
            assert load.refuse == match.refuse
            assert load.lease is None or len(load.slots) == len(load.generations) == len(load.blocks) * SHARDS
            assert load.lease is None or load.lease.session == self.session
        if not loads:
            model.computed = computed + 1

    @precondition(lambda self: any(model.loading for model in self.alive.values()))
    @rule(failed=st.booleans())
    def receive(self, failed: bool) -> None:
        """All ranks have reported the oldest load."""
        name = min(name for name, model in self.alive.items() if model.loading)
        model = self.alive[name]
        model.loading = False
        model.failed |= failed
        model.computed = 0 if failed else model.known - 1
        self.run(self.tracker.received(name, failed))
        if failed and self.strict:
            self.end(name)

    @precondition(lambda self: self.dying)
    @rule(failed=st.booleans())
    def receive_for_nobody(self, failed: bool) -> None:
        """The same for a request that was aborted in the meantime."""
        self.run(self.tracker.received(self.dying.pop(), failed))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 1), outputs=st.integers(0, 6))
    def preempt(self, which: int, outputs: int) -> None:
        model = self.alive[self.pick(which)]
        if model.computed:
            model.computed = 0
            model.known += outputs

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 1))
    def finish(self, which: int) -> None:
        self.end(self.pick(which))

    def end(self, name: str) -> None:
        model = self.alive.pop(name)
        commands = self.tracker.finished(name)
        if model.loading:
            # The ranks still read from the lease and write into the blocks.
            assert commands == []
            self.dying.add(name)
        self.run(commands)

    @rule(session=st.sampled_from([None, 1, 1, 1, 2]))
    def tier_changes(self, session: int | None) -> None:
        self.session = None if session is None else SessionId(session, 1)

    @rule(seconds=st.sampled_from([0.1, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def sound(self) -> None:
        self.tracker.validate()
        unreleased = sum(1 for released in self.leases.values() if not released)
        assert self.tracker.open_leases == unreleased

    def teardown(self) -> None:
        for name in list(self.alive):
            self.end(name)
        while self.dying:
            self.receive_for_nobody(False)
        while self.asks:
            self.answer(4, 0, "")
        assert self.tracker.requests == self.tracker.open_lookups == self.tracker.open_leases == 0
        assert set(self.leases.values()) <= {1}


class StrictLoadMachine(LoadMachine):
    strict = True


TestLoadMachine = LoadMachine.TestCase
TestLoadMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestStrictLoadMachine = StrictLoadMachine.TestCase
TestStrictLoadMachine.settings = TestLoadMachine.settings
