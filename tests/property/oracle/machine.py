"""The machine: random schedules of an engine with a tier, and what has to hold after each step and at the end.

    arrive · step · land · answer · load · save · preempt · mishap: abort, evict, expire, reset, restart, stop, wait

A step schedules, computes and delivers; copies and answers happen when a rule says so, or along with a step, so that
stories get somewhere in thirty of them.
"""

from __future__ import annotations

import logging
from collections import Counter

from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pegaflow.connector.counters import Counters
from pegaflow.connector.scheduler import SchedulerHalf

from oracle.acts import HARMLESS, Act, Begin, acts, begins
from oracle.again import ask_again
from oracle.batch import Batch, Draw
from oracle.block_pool import BlockPool
from oracle.delivery import Delivery
from oracle.forward import Forward
from oracle.ledger import Ledger
from oracle.memory import Memory
from oracle.prefixes import BLOCK, SPLITS, Prefixes, as_hash
from oracle.rank import Fate, Rank
from oracle.request import Kind, Request, Status
from oracle.scheduler import Scheduler
from oracle.shape import BLOCKS, shape
from oracle.tier import FINGERPRINT, Tier
from oracle.verdict import Verdict

ERRORS = ("hook_errors", "saves|offer_failed", "saves|no_block_table")
LOG = logging.getLogger("oracle")
LOG.disabled = True

SEEN: Counter[str] = Counter()
"""What happened in all runs of this process: a test of nothing would show here."""


MOST = 22
"""Tokens of a prompt. With its answer it fits into the pool, alone."""


class OracleMachine(RuleBasedStateMachine):
    @initialize(begin=begins())
    def start(self, begin: Begin) -> None:
        flags = begin.flags
        fine, untailed, clean = flags & 6 == 6, flags & 24 == 24, begin.trouble < 3
        self.shape = shape(begin.ranks, begin.use, begin.depth, not flags & 1, fine, not untailed, bool(flags & 2), clean)
        self.now = 0.0
        self.verdict = Verdict()
        self.prefixes = Prefixes()
        self.pool = BlockPool(BLOCKS, self.verdict)
        engine = self.shape.engine
        self.memory = Memory(engine.ranks, BLOCKS)
        self.counters = Counters()
        self.tier = Tier(self.prefixes, self.verdict, engine, SEEN)
        self.ledger = Ledger(self.shape, self.tier, self.verdict, SEEN)
        self.half = SchedulerHalf(
            self.shape.options, engine, self.prefixes.tail_hash, self.clock, self.counters, LOG, seed_agrees=lambda: True
        )
        self.half.bind_pool(self.pool)
        self.half.connect(self.tier, FINGERPRINT)
        self.ranks = [
            Rank(n, engine, self.memory, self.tier, self.pool, self.verdict, self.counters, LOG, self.clock)
            for n in range(engine.ranks)
        ]
        self.scheduler = Scheduler(self.half, self.pool, self.memory, self.tier, self.shape, self.ledger, self.verdict, SEEN)
        self.tier.requests = self.scheduler.requests
        self.delivery = Delivery(self.scheduler)
        self.forward = Forward(self.prefixes, self.memory, self.pool, self.shape, self.verdict)
        self.arrivals = 0
        self.ended: list[Request] = []
        self.shunned = begin.shunned
        self.warm(begin.pages)
        SEEN[f"use {self.shape.engine.role} {self.shape.options.mode} {self.shape.options.decode}"] += 1
        SEEN[f"ranks {engine.tp}x{engine.pp}{' mla' * engine.mla}"] += 1
        SEEN[f"depth {begin.depth}{' async' * self.shape.asynchronous}"] += 1
        SEEN["fine_hashes"] += fine
        SEEN["clean"] += clean

    def clock(self) -> float:
        return self.now

    def warm(self, pages: int) -> None:
        self.pages = pages
        for text in range(len(SPLITS)) if pages else ():
            stranger = Request("stranger", self.prefixes, text, pages * BLOCK + text, 1, Kind.PLAIN)
            for index, content in enumerate(stranger.contents):
                self.tier.fill(stranger.truth, (index + 1) * BLOCK, FINGERPRINT + content)
            if text:
                self.tier.fill(stranger.truth, stranger.num_tokens, FINGERPRINT + as_hash(stranger.truth[-1]))

    @property
    def alive(self) -> list[Request]:
        return [request for request in self.scheduler.requests.values() if request.status is not Status.FINISHED]

    # What happens.

    @rule(act=acts())
    def act(self, act: Act) -> None:
        if act.name in self.shunned or not self.possible(act.name):
            self.step(*act.otherwise)
        else:
            getattr(self, act.name)(*act.choices)

    def possible(self, name: str) -> bool:
        match name:
            case "arrive":
                return len(self.alive) < 4
            case "land":
                return bool(self.scheduler.batches)
            case "answer":
                return bool(self.tier.asked)
            case "load":
                return any(rank.loads for rank in self.ranks)
            case "save":
                return any(rank.saves for rank in self.ranks)
            case "preempt":
                return self.may_preempt()
        return True

    def arrive(self, text: int, prompt: int, answer: int, kind: Kind) -> None:
        if prompt > MOST:  # the prompt of another engine, or that with one token more
            prompt = max(1, min(MOST, self.pages * BLOCK + text + prompt % 2))
        self.arrivals += 1
        request = Request(f"r{self.arrivals}", self.prefixes, text, prompt, answer, kind, self.shape.engine.hash_block_size)
        self.ended.append(request)
        self.scheduler.add(request)

    def step(self, chunk: int, drafts: int, accepted: int, room: int, flags: int) -> None:
        """`flags`: intents go out; copies, answers happen along with it; a small budget; computed at once."""
        SEEN["steps"] += 1
        self.tier.accepts = flags & 3 != 3
        self.tier.has_space = self.shape.clean or flags & 7 != 6
        if flags & 8:
            self.answer_all()
            if flags & 32:
                self.copy_all(loads=flags & 7 == 0)
        batch = self.scheduler.schedule(Draw(chunk, 8 if flags & 16 else 24, drafts, accepted, room))
        if flags & 4 or self.shape.depth == 1:
            self.compute(batch)
        while len(self.scheduler.batches) >= self.shape.depth:
            self.land()

    def smooth_steps(self, chunk: int) -> None:
        """Two steps in which nothing goes wrong; with an odd `chunk` copies are not waited for."""
        for _ in range(2):
            self.step(chunk, 0, 0, 0, 8 if chunk % 2 else 8 + 32)

    def land(self) -> None:
        """The oldest batch's output arrives."""
        batch = self.scheduler.batches[0]
        self.compute(batch)
        self.delivery.deliver(batch)

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

    def answer(self, which: int, most: int, code: str) -> None:
        if self.shape.clean:
            self.tier.answer(which, 9, "")
        else:
            self.tier.answer(which, most, code)

    def load(self, which: int, fate: Fate) -> None:
        """The oldest load of one rank, or one of each."""
        for rank in self.ranks[which : which + 1] if which < len(self.ranks) else self.ranks:
            if rank.loads:
                rank.load(self.fated("load", fate))

    def save(self, which: int, fate: Fate) -> None:
        for rank in self.ranks[which : which + 1] if which < len(self.ranks) else self.ranks:
            if rank.saves:
                rank.save(self.fated("save", fate))

    def fated(self, what: str, fate: Fate) -> Fate:
        fate = Fate.DONE if self.shape.clean else fate
        SEEN[f"{what}_{fate}"] += 1
        return fate

    def answer_all(self) -> None:
        while self.tier.asked:
            self.tier.answer(0, 9, "")

    def copy_all(self, loads: bool = True) -> None:
        for rank in self.ranks:
            while rank.loads and loads:
                rank.load(Fate.DONE)
            while rank.saves:
                rank.save(Fate.DONE)

    def preempt(self) -> None:
        """A block is wanted for somebody else."""
        self.scheduler.preempt(self.scheduler.running[-1])

    def may_preempt(self) -> bool:
        """vLLM preempts while it schedules: nothing is in flight with one batch at a time, and fences are respected."""
        scheduler = self.scheduler
        return bool(scheduler.running) and self.at_rest() and scheduler.may_free(scheduler.running[-1])

    def at_rest(self) -> bool:
        return self.shape.depth > 1 or not self.scheduler.batches

    def mishap(self, what: str, which: int) -> None:
        if self.shape.clean and what not in HARMLESS:
            what = "calm"
        match what:
            case "calm":
                self.smooth_steps(11 + which)
            case "abort" if self.alive:
                request = self.alive[which % len(self.alive)]
                SEEN["aborted_" + request.status.name.lower()] += 1
                SEEN["aborted_in_flight"] += request.in_flight > 0
                self.scheduler.finish(request)
            case "evict":
                self.tier.evict()
                self.ledger.lost()
            case "expire":
                SEEN["expired"] += any(not lease.released for lease in self.tier.leases.values())
                self.tier.expire()
            case "reset" | "reset_running" if self.at_rest():
                self.scheduler.reset(what == "reset_running")
            case "stop" if self.tier.session() is not None:
                self.tier.stop()
                self.excuse()
            case "restart" | "stop":
                SEEN["restarted"] += 1
                SEEN["restarted_while_loading"] += any(rank.loads for rank in self.ranks)
                SEEN["restarted_while_saving"] += any(rank.saves for rank in self.ranks)
                self.tier.stop()
                self.tier.start()
                self.ledger.lost()
                self.excuse()
                self.warm(which)
            case "wait":
                self.now += 10.0  # longer than any lookup may take
                self.excuse()

    def excuse(self) -> None:
        """Their lookups may have got an error instead of an answer, or may get their answer too late."""
        for request in self.alive:
            request.excused = True

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
        assert not [name for name in counted if name.startswith(ERRORS)], counted

        waiting = sum(answer.lease is not None for answer in self.tier.answers)
        assert self.half.loads.open_leases + waiting == held, "leases are held that nobody remembers"

    def teardown(self) -> None:
        if not hasattr(self, "ended") or self.verdict.faults:
            return
        self.tier.accepts = self.tier.has_space = True
        if self.arrivals % 2:
            for request in self.alive:
                self.scheduler.finish(request)
        if self.tier.session() is None:
            self.tier.start()
        self.drain()
        self.sound()
        assert not self.scheduler.requests, "requests that never end"
        assert not self.scheduler.claims, "loads that are never reported"
        assert not any(self.pool.to_read), "copies are under way when all has ended"
        open_ends = self.half.saves.open_saves, self.half.loads.open_lookups, self.half.loads.requests
        assert open_ends == (0, 0, 0), f"open saves, lookups, requests: {open_ends}"
        assert not any(block.refs for block in self.pool.blocks), "blocks are held at the end"
        assert all(lease.released for lease in self.tier.leases.values()), "leases are held at the end"
        assert not any(self.tier.owed.values()), "positions without a last word"
        self.ledger.settled()
        self.sound()
        SEEN["sealed"] += self.tier.sealed_full
        SEEN["sealed_tails"] += self.tier.sealed_tails
        if self.shape.clean and self.shape.options.loads:
            ask_again(self)

    def drain(self) -> None:
        """Steps until everything has ended, as vLLM would: as long as there are requests, or the connector is busy."""
        for _ in range(120):
            if not (self.scheduler.requests or self.scheduler.batches or self.half.busy()):
                break
            self.answer_all()
            self.copy_all()
            self.scheduler.schedule(Draw(9, 24, 2, 1, 0))
            while self.scheduler.batches:
                self.land()
            self.sound()
