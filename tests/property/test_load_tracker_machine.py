"""The load tracker against a bus and an engine that do their worst, in any order.

Whatever happens, every lease is released exactly once, a claim is never larger than what vLLM can take, a request
whose load failed never claims again, and when all requests are over nothing is left.
"""

from array import array
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
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
    requests = Bundle("requests")
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

    @rule(target=requests, prompt=st.integers(1, 14), local=st.integers(0, 3))
    def admit(self, prompt: int, local: int) -> str:
        self.count += 1
        name = f"r{self.count}"
        self.alive[name] = Model(prompt, prompt)
        self.ask(name, min(local, (prompt - 1) // BLOCK))
        return name

    @rule(full=st.integers(0, 4), tail=st.integers(-1, 2), code=st.sampled_from(["", "", "", "overloaded"]))
    def answer(self, full: int, tail: int, code: str) -> None:
        if not self.asks:
            return
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

    @rule(name=requests, local=st.integers(0, 3), fits=st.booleans())
    def schedule(self, name: str, local: int, fits: bool) -> None:
        """vLLM considers a waiting request; `fits`: it finds blocks for it."""
        model = self.alive.get(name)
        if model is None or model.loading or model.computed:
            return
        computed = min(local, (model.known - 1) // BLOCK) * BLOCK
        match = self.tracker.matched(name, self.version(model), computed, self.session, self.now)
        self.run(match.commands)
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

    @rule(name=requests, failed=st.booleans())
    def receive(self, name: str, failed: bool) -> None:
        model = self.alive.get(name)
        if name in self.dying:
            self.dying.discard(name)
            self.run(self.tracker.received(name, failed))
        elif model is not None and model.loading:
            model.loading = False
            if failed and self.strict:
                self.run(self.tracker.received(name, failed))
                self.finish(name)
                return
            model.failed |= failed
            model.computed = 0 if failed else model.known - 1
            self.run(self.tracker.received(name, failed))

    @rule(name=requests, outputs=st.integers(0, 6))
    def preempt(self, name: str, outputs: int) -> None:
        model = self.alive.get(name)
        if model is not None and model.computed:
            model.computed = 0
            model.known += outputs

    @rule(name=requests)
    def finish(self, name: str) -> None:
        model = self.alive.pop(name, None)
        if model is None:
            return
        if model.loading:
            self.dying.add(name)
        self.run(self.tracker.finished(name))

    @rule(session=st.sampled_from([None, 1, 2, 3]))
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
            self.finish(name)
        for name in list(self.dying):
            self.receive(name, False)
        while self.asks:
            self.answer(4, 0, "")
        assert self.tracker.requests == self.tracker.open_lookups == self.tracker.open_leases == 0
        assert set(self.leases.values()) <= {1}


class StrictLoadMachine(LoadMachine):
    strict = True


TestLoadMachine = LoadMachine.TestCase
TestLoadMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStrictLoadMachine = StrictLoadMachine.TestCase
TestStrictLoadMachine.settings = TestLoadMachine.settings
