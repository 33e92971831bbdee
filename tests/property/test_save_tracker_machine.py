"""The save tracker against a model of vLLM's memory: a saved page never holds a row that was not computed.

Each block is a list of rows; a row holds `(request, position)` once a step has computed it, and rubbish before, also
after a preemption, when the request gets other blocks. A step computes its rows before anything of it may be saved,
drafts included: of those only the known ones may end up in a page.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pegaflow.connector.save_tracker import Progress, SaveTracker

BLOCK = 4
RANKS = 2


@dataclass
class Model:
    prompt: int
    plain: bool
    known: int
    computed: int = 0
    table: list[list[object]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    tails: int = 0


class SaveMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = SaveTracker(BLOCK, RANKS, True)
        self.alive: dict[str, Model] = {}
        self.blocks: list[list[object]] = []
        self.open: dict[int, int] = {}
        self.count = 0

    def block(self) -> list[object]:
        self.blocks.append([None] * BLOCK)
        return self.blocks[-1]

    def number(self, block: list[object]) -> int:
        return next(i for i, other in enumerate(self.blocks) if other is block)

    def pick(self, which: int) -> str:
        """One of the requests that are alive: they are few at a time, so that long stories happen to each."""
        return sorted(self.alive)[which % len(self.alive)]

    @precondition(lambda self: len(self.alive) < 2)
    @rule(prompt=st.integers(1, 14), plain=st.booleans())
    def admit(self, prompt: int, plain: bool) -> None:
        self.count += 1
        name = f"r{self.count}"
        self.alive[name] = Model(prompt, plain, prompt)
        self.tracker.admitted(name, prompt, plain)

    @precondition(lambda self: self.alive)
    @rule(
        which=st.integers(0, 1),
        chunk=st.integers(1, 9),
        drafts=st.integers(0, 3),
        published=st.booleans(),
        late=st.booleans(),
    )
    def step(self, which: int, chunk: int, drafts: int, published: bool, late: bool) -> None:
        """One scheduling step of one request. `late`: vLLM's batch before it has not delivered its token yet."""
        name = self.pick(which)
        model = self.alive[name]
        missing = model.known - model.computed
        scheduled = min(chunk, missing)
        if scheduled == missing:
            scheduled += drafts
        if scheduled <= 0:
            return
        while len(model.table) * BLOCK < model.computed + scheduled:
            model.table.append(self.block())
        for position in range(model.computed, model.computed + scheduled):
            # A draft's row is what the next known token may not be.
            row = (name, position) if position < model.known else "draft"
            model.table[position // BLOCK][position % BLOCK] = row
        progress = Progress(name, model.computed, scheduled, model.known, model.known // BLOCK)
        table = [self.number(block) for block in model.table]
        offer = self.tracker.progressed(progress, table)
        assert offer is None or self.tracker.wants(progress)
        if offer is not None and published:
            for save in self.tracker.published([offer]):
                self.open[save.save] = RANKS
            for place, (index, block) in enumerate(zip(offer.indices, offer.blocks, strict=True), 1):
                tail = offer.tail_rows and place == len(offer.indices)
                rows = offer.tail_rows if tail else BLOCK
                assert self.blocks[block][:rows] == [(name, index * BLOCK + row) for row in range(rows)]
                if tail:
                    assert index * BLOCK + rows == model.prompt
                    model.tails += 1
                else:
                    model.saved.append(index)
            assert len(set(model.saved)) == len(model.saved)
            assert model.tails <= int(model.plain and model.prompt % BLOCK != 0)
            # Nothing that could be saved was left out.
            assert len(model.saved) >= min(model.known, progress.written) // BLOCK
        model.computed = min(model.computed + scheduled, model.known)
        if model.computed == model.known and not late:
            model.known += 1

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 1), kept=st.integers(0, 3))
    def preempt(self, which: int, kept: int) -> None:
        """Other blocks from here on; a few of the old ones may be found again in vLLM's own cache."""
        model = self.alive[self.pick(which)]
        whole = min(kept, model.computed // BLOCK, (model.known - 1) // BLOCK)
        model.table = model.table[:whole]
        model.computed = whole * BLOCK

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 1))
    def finish(self, which: int) -> None:
        name = self.pick(which)
        self.tracker.finished(name)
        del self.alive[name]

    @precondition(lambda self: self.open)
    @rule()
    def rank_ends_a_save(self) -> None:
        save = min(self.open)
        unpin = self.tracker.ended(save)
        self.open[save] -= 1
        assert (unpin is not None) == (self.open[save] == 0)
        if unpin is not None:
            del self.open[save]

    @invariant()
    def sound(self) -> None:
        self.tracker.validate()
        assert self.tracker.open_saves == len(self.open)
        assert bool(self.tracker.pinned()) == bool(self.open)


TestSaveMachine = SaveMachine.TestCase
TestSaveMachine.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
