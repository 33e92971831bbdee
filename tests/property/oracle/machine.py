"""The machine: random schedules of an engine with a tier, and what has to hold after each step and at the end.

    arrive · step · land · answer · load · save · preempt · mishap: abort, evict, restart, stop, wait

A step schedules, computes and delivers; copies and answers happen when a rule says so, or along with a step, so that
stories get somewhere in thirty of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import CacheLayer, Engine
from pegaflow.connector.options import parse_options
from pegaflow.connector.scheduler import SchedulerHalf

from oracle.block_pool import BlockPool
from oracle.forward import Forward
from oracle.memory import Memory
from oracle.prefixes import BLOCK, SPLITS, Prefixes, as_hash
from oracle.rank import Fate, Rank
from oracle.request import Request, Status
from oracle.scheduler import Batch, Draw, Scheduler
from oracle.tier import FINGERPRINT, Tier
from oracle.verdict import Verdict

RANKS = 2
BLOCKS = 14
ENGINE = Engine(
    engine_id="e",
    role="kv_both",
    load_failure_policy="recompute",
    block_size=BLOCK,
    hash_block_size=BLOCK,
    num_blocks=BLOCKS,
    groups=((CacheLayer("layer", "FullAttentionSpec", None, 0),),),
    tp=RANKS,
    pp=1,
    dcp=1,
    pcp=1,
    mla=False,
    speculation=None,
    scheduling_policy="fcfs",
    hash_algorithm="xxhash_cbor",
    dynamic_kv_scales=False,
    model="m",
    model_path=None,
    revision="",
    dtype="float32",
    cache_dtype="auto",
    quantization="",
    hf_overrides="",
)
OPTIONS = parse_options({"pegaflow.pd_tail_save": True, "pegaflow.pd_tail_load": True}, {})
STRICT = parse_options({"pegaflow.pd_tail_save": True, "pegaflow.pd_tail_load": True, "pegaflow.decode": "strict"}, {})
MISHAPS = ("hook_errors", "saves|offer_failed", "saves|no_block_table")
LOG = logging.getLogger("oracle")
LOG.disabled = True

SEEN: Counter[str] = Counter()
"""What happened in all runs of this process: a test of nothing would show here."""


class OracleMachine(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 2), mla=st.booleans(), strict=st.sampled_from([False, False, False, True]), warm=st.integers(0, 5)
    )
    def start(self, depth: int, mla: bool, strict: bool, warm: int) -> None:
        """`warm`: pages of each text that another engine has saved."""
        self.now = 0.0
        self.verdict = Verdict()
        self.prefixes = Prefixes()
        self.pool = BlockPool(BLOCKS, self.verdict)
        self.memory = Memory(RANKS, BLOCKS)
        self.counters = Counters()
        self.tier = Tier(self.prefixes, self.verdict, RANKS, mla)
        engine = replace(ENGINE, mla=mla)
        self.half = SchedulerHalf(
            STRICT if strict else OPTIONS,
            engine,
            self.prefixes.tail_hash,
            self.clock,
            self.counters,
            LOG,
            seed_agrees=lambda: True,
        )
        self.half.bind_pool(self.pool)
        self.half.connect(self.tier, FINGERPRINT)
        self.ranks = [
            Rank(n, mla, RANKS, self.memory, self.tier, self.pool, self.verdict, self.counters, LOG, self.clock)
            for n in range(RANKS)
        ]
        self.scheduler = Scheduler(self.half, self.pool, self.memory, self.tier, RANKS, depth, strict, self.verdict, SEEN)
        self.forward = Forward(self.prefixes, self.memory, self.pool, self.verdict)
        self.arrivals = 0
        self.warm(warm)

    def clock(self) -> float:
        return self.now

    def warm(self, pages: int) -> None:
        for text in range(len(SPLITS)) if pages else ():
            stranger = Request("stranger", self.prefixes, text, pages * BLOCK + text, 1, False)
            for index, content in enumerate(stranger.block_hashes):
                self.tier.fill(stranger.truth, (index + 1) * BLOCK, FINGERPRINT + content)
            if text:
                self.tier.fill(stranger.truth, stranger.num_tokens, FINGERPRINT + as_hash(stranger.truth[-1]))

    @property
    def alive(self) -> list[Request]:
        return [request for request in self.scheduler.requests.values() if request.status is not Status.FINISHED]

    # What happens.

    @precondition(lambda self: len(self.alive) < 4)
    @rule(text=st.integers(0, len(SPLITS) - 1), prompt=st.integers(1, 22), answer=st.integers(1, 14), salt=st.integers(0, 7))
    def arrive(self, text: int, prompt: int, answer: int, salt: int) -> None:
        self.arrivals += 1
        self.scheduler.add(Request(f"r{self.arrivals}", self.prefixes, text, prompt, answer, salt == 7))

    @rule(
        chunk=st.integers(1, 12),
        drafts=st.integers(0, 3),
        accepted=st.integers(0, 3),
        room=st.sampled_from([0, 0, 3, BLOCKS]),
        flags=st.integers(0, 63),
    )
    def step(self, chunk: int, drafts: int, accepted: int, room: int, flags: int) -> None:
        """`flags`: intents go out; copies, answers happen along with it; a small budget; computed at once."""
        SEEN["steps"] += 1
        self.tier.accepts = flags & 3 != 3
        self.tier.has_space = flags & 7 != 6
        if flags & 8:
            self.answer_all()
            if flags & 32:
                self.copy_all()
        batch = self.scheduler.schedule(Draw(chunk, 8 if flags & 16 else 24, drafts, accepted, room))
        if flags & 4:
            self.compute(batch)
        while len(self.scheduler.batches) >= self.scheduler.depth:
            self.land()

    @rule(chunk=st.integers(4, 24))
    def smooth_steps(self, chunk: int) -> None:
        """Two steps in which everything goes well."""
        for _ in range(2):
            self.step(chunk, 0, 0, 0, 8 + 32)

    @precondition(lambda self: self.scheduler.batches)
    @rule()
    def land(self) -> None:
        """The oldest batch's output arrives."""
        batch = self.scheduler.batches[0]
        self.compute(batch)
        self.scheduler.deliver(batch)

    def compute(self, until: Batch) -> None:
        for batch in self.scheduler.batches:
            if batch.collected is None:
                for rank in self.ranks:
                    rank.before_forward(batch.work)
                for item in batch.items:
                    self.forward.run(item)
                if batch.work.saves is not None:
                    for rank in self.ranks:
                        rank.after_forward(batch.work.saves)
                batch.collected = [rank.collect() for rank in self.ranks]
            if batch is until:
                return

    @precondition(lambda self: self.tier.asked)
    @rule(which=st.integers(0, 3), most=st.sampled_from([9, 9, 9, 0, 1, 2]), code=st.sampled_from(["", "", "overloaded"]))
    def answer(self, which: int, most: int, code: str) -> None:
        self.tier.answer(which, most, code)

    @precondition(lambda self: any(rank.loads for rank in self.ranks))
    @rule(
        which=st.integers(0, 1 + RANKS),
        fate=st.sampled_from([Fate.DONE, Fate.DONE, Fate.RAISES, Fate.REPLACED, Fate.SESSION_OVER]),
    )
    def load(self, which: int, fate: Fate) -> None:
        """The oldest load of one rank, or one of each."""
        for rank in self.ranks[which : which + 1] if which < RANKS else self.ranks:
            if rank.loads:
                SEEN["load_" + fate] += 1
                rank.load(fate)

    @precondition(lambda self: any(rank.saves for rank in self.ranks))
    @rule(
        which=st.integers(0, 1 + RANKS),
        fate=st.sampled_from([Fate.DONE, Fate.DONE, Fate.RAISES, Fate.NO_GRANT, Fate.SESSION_OVER]),
    )
    def save(self, which: int, fate: Fate) -> None:
        for rank in self.ranks[which : which + 1] if which < RANKS else self.ranks:
            if rank.saves:
                SEEN["save_" + fate] += 1
                rank.save(fate)

    def answer_all(self) -> None:
        while self.tier.asked:
            self.tier.answer(0, 9, "")

    def copy_all(self) -> None:
        for rank in self.ranks:
            while rank.loads:
                rank.load(Fate.DONE)
            while rank.saves:
                rank.save(Fate.DONE)

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def preempt(self) -> None:
        self.scheduler.preempt(self.scheduler.running[-1])

    # One rule for all of these: they end stories, so they should not be most of what happens.
    @rule(
        what=st.sampled_from(["abort", "abort", "evict", "restart", "restart", "stop", "wait"]),
        which=st.integers(0, 3),
    )
    def mishap(self, what: str, which: int) -> None:
        match what:
            case "abort" if self.alive:
                request = self.alive[which % len(self.alive)]
                SEEN["aborted_" + request.status.name.lower()] += 1
                self.scheduler.finish(request)
            case "evict":
                self.tier.evict()
            case "stop" if self.tier.session() is not None:
                self.tier.stop()
            case "restart" | "stop":
                SEEN["restarted"] += 1
                self.tier.stop()
                self.tier.start()
                self.warm(which)
            case "wait":
                self.now += 10.0  # longer than any lookup may take

    # What holds.

    @invariant()
    def sound(self) -> None:
        assert not self.verdict.faults, self.verdict.faults
        self.half.saves.validate()
        self.half.loads.validate()
        references = self.scheduler.references()
        for block, count in self.half.saves.pinned().items():
            references[block] = references.get(block, 0) + count
        counts = {block.block_id: block.refs for block in self.pool.blocks if block.refs}
        assert references == counts, "references of blocks that nobody holds"
        held = sum(not lease.released for lease in self.tier.leases.values())
        counted = self.counters.take()
        assert not [name for name in counted if name.startswith(MISHAPS)], counted

        waiting = sum(answer.lease is not None for answer in self.tier.answers)
        assert self.half.loads.open_leases + waiting == held, "leases are held that nobody remembers"

    def teardown(self) -> None:
        if not hasattr(self, "forward") or self.verdict.faults:
            return
        self.tier.accepts = self.tier.has_space = True
        if self.arrivals % 2:
            for request in self.alive:
                self.scheduler.finish(request)
        if self.tier.session() is None:
            self.tier.start()
        for _ in range(120):
            if not (self.scheduler.requests or self.scheduler.batches or self.half.busy()):
                break
            self.answer_all()
            self.copy_all()
            self.scheduler.schedule(Draw(9, 24, 2, 1, 0))
            while self.scheduler.batches:
                self.land()
            self.sound()
        self.sound()
        assert not self.scheduler.requests, "requests that never end"
        assert not self.scheduler.claims, "loads that are never reported"
        assert not any(self.pool.to_read), "copies are under way when all has ended"
        open_ends = self.half.saves.open_saves, self.half.loads.open_lookups, self.half.loads.requests
        assert open_ends == (0, 0, 0), f"open saves, lookups, requests: {open_ends}"
        assert not any(block.refs for block in self.pool.blocks), "blocks are held at the end"
        assert all(lease.released for lease in self.tier.leases.values()), "leases are held at the end"
        assert not any(self.tier.owed.values()), "positions without a last word"
        SEEN["sealed"] += self.tier.sealed_full
        SEEN["sealed_tails"] += self.tier.sealed_tails
