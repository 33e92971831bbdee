"""What one example's engine is: its ranks, its scheduler, its options; and what vLLM makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine_descriptions import plain_engine
from pegaflow.connector.engine import Engine
from pegaflow.connector.options import Options, parse_options
from pegaflow.connector.refusals import refuse_unsupported

from oracle.prefixes import BLOCK

BLOCKS = 15
"""One of them is vLLM's null block, which nobody ever gets."""

ENGINE = plain_engine(BLOCK, BLOCKS, tp=2, speculation="ngram")

RANKS = ((2, 1, False), (2, 1, True), (1, 1, False), (1, 2, False), (2, 2, True))
"""TP, PP, MLA."""

USES = (
    ("kv_both", "read_write", "recompute"),
    ("kv_both", "read_write", "recompute"),
    ("kv_both", "read_write", "strict"),
    ("kv_consumer", "read_write", "recompute"),
    ("kv_producer", "write_only", "recompute"),
    ("kv_both", "read", "recompute"),
)
"""Role, `pegaflow.mode`, `pegaflow.decode`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`depth`: batches in flight. `asynchronous`: the scheduler does not wait for the tokens of one batch before it
    schedules the next (`async_scheduler.py`); else batches in flight are those of a pipeline. `v2`: the V2 model
    runner, which is told of resumed requests as of new ones. `clean`: nothing fails, so nothing may be missing."""

    engine: Engine
    options: Options
    depth: int
    asynchronous: bool
    v2: bool
    clean: bool

    @property
    def fenced(self) -> bool:
        """`defer_block_free`: blocks that a batch in flight still writes are not given back before its output."""
        return self.depth > 1 and self.engine.role != "kv_producer"

    @property
    def saves_tails(self) -> bool:
        return self.options.saves and self.options.pd_tail_save and self.engine.role != "kv_consumer"


def shape(ranks: int, use: int, depth: int, asynchronous: bool, fine: bool, tails: bool, v2: bool, clean: bool) -> Shape:
    """`fine`: vLLM hashes half blocks. Refused combinations are not made."""
    tp, pp, mla = RANKS[ranks]
    role, mode, decode = USES[use]
    strict = decode == "strict"
    options = parse_options(
        {
            "pegaflow.mode": mode,
            "pegaflow.decode": decode,
            "pegaflow.pd_tail_save": tails,
            "pegaflow.pd_tail_load": tails or strict,
        },
        {},
    )
    engine = replace(
        ENGINE,
        role=role,
        tp=tp,
        pp=pp,
        mla=mla,
        hash_block_size=BLOCK // 2 if fine else BLOCK,
        load_failure_policy="fail" if strict else "recompute",
    )
    refuse_unsupported(options, engine)
    return Shape(engine, options, depth, asynchronous and depth > 1, v2, clean)
