"""Puts a half together when vLLM starts: what it is for, whom it shares pages with, and its way to the tier.

Start-up is the only place that raises: what must not run is refused here with what to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pegaflow.common.clock import now
from pegaflow.common.keys import fingerprint
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.copy import make_copier
from pegaflow.connector.cores import unbound
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.fingerprint import base_factors, none_hash_value, with_layouts
from pegaflow.connector.keys import refuse_strangers
from pegaflow.connector.options import Options
from pegaflow.connector.refusals import refuse_unsupported
from pegaflow.connector.request_keys import TailHash
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.session import AttachState, Pool, TierOptions
from pegaflow.connector.work import RankLayout, layouts_by_shard
from pegaflow.connector.worker import RankHalf


class Assembly:
    """Of one process of one engine. Raises StartRefused where options or engine do not allow it."""

    def __init__(self, options: Options, engine: Engine, counters: Counters, log: logging.Logger) -> None:
        self._options, self._engine, self._counters, self._log = options, engine, counters, log
        refuse_unsupported(options, engine)
        refuse_strangers(options)
        self._none_hash = none_hash_value(engine.hash_algorithm)
        self._factors = base_factors(engine, self._none_hash)
        self._tier = TierOptions(
            options.tier,
            options.runtime_dir,
            options.mode.value,
            options.request_timeout_ms / 1000,
            options.wait_ms / 1000,
            options.curve_key_file,
        )

    def scheduler_half(self) -> SchedulerHalf:
        """Without a way to the tier yet: that needs the ranks' layouts."""
        return SchedulerHalf(
            self._options,
            self._engine,
            tail_hash(self._engine.hash_algorithm),
            now,
            self._counters,
            self._log,
            seed_agrees=self._seed_agrees,
        )

    def connect(self, half: SchedulerHalf, found: Sequence[RankLayout], wait_s: float) -> None:
        """Attaches the scheduler half. Raises StartRefused for layouts that do not fit, AttachRefused within `wait_s`."""
        engine = self._engine
        layouts = layouts_by_shard(found, engine.shards)
        digests = [layout.digest for layout in layouts]
        factors = with_layouts(self._factors, digests)
        full = fingerprint(factors)
        self._log.info("fingerprint %s: %s", full.hex(), ", ".join(f"{name}={value}" for name, value in sorted(factors.items())))
        bus = SchedulerBus(
            self._tier,
            engine.scheduler_member(),
            fingerprint(self._factors),
            full,
            factors,
            digests,
            [layout.page_bytes for layout in layouts],
            clock=now,
        )
        self._attach(bus, wait_s, f"scheduler half, fingerprint {full.hex()}")
        half.connect(bus, full)

    def rank_half(
        self, caches: Mapping[str, torch.Tensor], tp_rank: int, pp_rank: int, wait_s: float
    ) -> tuple[RankHalf, RankLayout]:
        """The rank that owns these tensors, attached. Raises StartRefused, AttachRefused within `wait_s`."""
        copier = make_copier(caches, self._engine.num_blocks, self._engine.block_size)
        member = self._engine.rank_member(tp_rank, pp_rank)
        layout = copier.layout

        pin_failed = False

        def on_backed(pool: Pool, start: int, length: int) -> None:
            nonlocal pin_failed
            try:
                copier.pin(pool.memory, start, length)
            except Exception:  # slower, not wrong
                if not pin_failed:
                    self._log.exception("pin_failed: not all of the pool is pinned, copies of the rest will stage")
                pin_failed = True

        def on_leave() -> None:
            try:
                copier.unpin()
            except Exception:
                self._log.exception("unpin_failed: the pool is unmapped all the same")

        # With the model on a CPU, this thread is bound to a compute core; the connector's own must not inherit that.
        with unbound(not copier.on_device):
            bus = RankBus(
                self._tier,
                member,
                fingerprint(self._factors),
                layout.digest,
                layout.page_bytes,
                clock=now,
                on_backed=on_backed if copier.on_device else None,
                on_leave=on_leave,
                gpu=copier.on_device,
            )
            self._attach(bus, wait_s, f"rank {member.rank}, pages of {layout.page_bytes} bytes")
            half = RankHalf(copier, bus, member, now, self._counters, self._log)
        self._counters.watch(f"rank {member.rank}", lambda: {"open_grants": bus.open_grants})
        told = RankLayout(member.shard, layout.digest, layout.page_bytes)
        half.tell(told)
        return half, told

    def _attach(self, bus: RankBus | SchedulerBus, wait_s: float, who: str) -> None:
        try:
            state = bus.wait_attached(wait_s)
        except BaseException:
            bus.close()
            raise
        if state is AttachState.ATTACHED:
            self._log.info("attached: %s, to the tier at %s", who, self._options.tier)
        elif wait_s:
            self._log.warning(
                "tier_absent: %s: no tier at %s; the engine starts without cache and goes on trying", who, self._options.tier
            )
        else:
            self._log.info("attaching: %s, to the tier at %s", who, self._options.tier)

    def _seed_agrees(self) -> bool:
        from vllm.v1.core import kv_cache_utils

        return bool(self._none_hash == kv_cache_utils.NONE_HASH)


def tail_hash(algorithm: str) -> TailHash:
    """vLLM's own block hash, for the ids of a tail."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import BlockHash, hash_block_tokens

    function: Callable[[Any], bytes] = get_hash_fn_by_name(algorithm)

    def hashed(parent: bytes | None, token_ids: Sequence[int]) -> bytes:
        return hash_block_tokens(function, None if parent is None else BlockHash(parent), token_ids, None)

    return hashed
