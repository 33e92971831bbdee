"""What a waiting request costs: vLLM asks for it in every step until the tier has answered.

    scripts/bench/waiting [--polls 20000] [--json FILE]

arrival     on_new_request: the plan, the keys and handing the lookup over, CPU time of the scheduler's thread
poll        get_num_new_matched_tokens while the tier waits for pages that nobody has, CPU time of one call, and how many times
            something was handed to the thread with the sockets meanwhile (nothing should be)
The tier is a real one; the requests are vLLM's own, with its own block hashes at 16 tokens a block.

Exit codes: 0 all goals are met, 3 one is missed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pegaflow.common import clock
from pegaflow.common.pool import GRANULE
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import CacheLayer, Engine
from pegaflow.connector.options import parse_options
from pegaflow.connector.scheduler import SchedulerHalf
from report import Goal, at_most, ended, percentile, show
from stack import FINGERPRINT, Stack
from stack import Engine as AttachedEngine

BLOCK = 16
PROMPTS = (1_000, 8_000, 32_000)
WAIT_MS = 20_000


def description() -> Engine:
    """One rank with one layer; what matters here are the block size and that nothing is refused."""
    layer = CacheLayer("layer", "FullAttentionSpec", None, 0)
    return Engine(
        engine_id="bench",
        role="kv_both",
        load_failure_policy="recompute",
        block_size=BLOCK,
        hash_block_size=BLOCK,
        num_blocks=4096,
        groups=((layer,),),
        tp=1,
        pp=1,
        dcp=1,
        pcp=1,
        mla=False,
        speculation=None,
        scheduling_policy="fcfs",
        hash_algorithm="sha256_cbor",
        dynamic_kv_scales=False,
        model="bench",
        model_path=None,
        revision="",
        dtype="float32",
        cache_dtype="auto",
        quantization="",
        hf_overrides="",
    )


def requests() -> Callable[[str, int], Any]:
    """Makes vLLM's requests of so many random-looking tokens, hashed by vLLM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch and vLLM warn of while they are imported is theirs
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK, sha256_cbor)

    def make(name: str, tokens: int) -> Any:
        ids = [hash((name, i)) % 30_000 for i in range(tokens)]
        return Request(name, ids, SamplingParams(max_tokens=1), None, block_hasher=hasher)

    return make


def spent(call: Callable[[], Any]) -> tuple[float, Any]:
    """Microseconds of CPU time of this thread, and the result."""
    start = time.thread_time_ns()
    result = call()
    return (time.thread_time_ns() - start) / 1e3, result


def polls(half: SchedulerHalf, request: Any, count: int) -> list[float]:
    """CPU microseconds per poll, in batches of 100: the clock itself costs as much as a poll."""
    times = []
    for _ in range(max(1, count // 100)):
        start = time.thread_time_ns()
        for _ in range(100):
            answer = half.matched(request, 0)
        times.append((time.thread_time_ns() - start) / 1e5)
        if answer != (None, False):
            raise SystemExit(f"the request does not wait: {answer}")
    return times


def measure(half: SchedulerHalf, bus: Any, make: Callable[[str, int], Any], tokens: int, count: int) -> dict[str, Any]:
    for warm in range(3):  # first calls of anything are slower
        request = make(f"warm {tokens} {warm}", tokens)
        half.new_request(request)
        half.matched(request, 0)
        half.finished(request.request_id)
    request = make(f"measured {tokens}", tokens)
    request.kv_transfer_params = {"pegaflow_expected": True}  # the tier waits for pages that nobody has
    arrival, _ = spent(lambda: half.new_request(request))
    handed = 0
    post = bus.post

    def counting(call: Callable[[], None]) -> None:
        nonlocal handed
        handed += 1
        post(call)

    bus.post = counting
    times = polls(half, request, count)
    bus.post = post
    half.finished(request.request_id)
    return {
        "prompt": tokens,
        "blocks": tokens // BLOCK,
        "arrival_us": arrival,
        "poll_us_p50": percentile(times, 0.5),
        "poll_us_p99": percentile(times, 0.99),
        "handed_over": handed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--polls", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    make = requests()
    rows: list[dict[str, Any]] = []
    with Stack("a", 64 << 20, mover=False) as stack:
        engine = AttachedEngine(stack.options("a"), GRANULE, "bench")
        options = parse_options({"pegaflow.wait_ms": WAIT_MS, "pegaflow.runtime_dir": str(stack.folder)}, {})
        log = logging.getLogger("bench")
        half = SchedulerHalf(options, description(), _no_tail, clock.now, Counters(), log, seed_agrees=lambda: True)
        half.connect(engine.scheduler, FINGERPRINT)
        rows += [measure(half, engine.scheduler, make, tokens, arguments.polls) for tokens in PROMPTS]
        engine.close()
    first, last = rows[0], rows[-1]
    goals: list[Goal] = [
        at_most("CPU of one poll, us", last["poll_us_p50"], 20.0),
        at_most(f"poll at {last['prompt']} tokens / at {first['prompt']}", last["poll_us_p50"] / first["poll_us_p50"], 1.5),
        at_most("handed to the socket thread while waiting", sum(row["handed_over"] for row in rows), 0),
    ]
    show([rows], goals, arguments.json)
    return ended(goals)


def _no_tail(parent: bytes | None, token_ids: Any) -> bytes:
    raise AssertionError("tails are not asked for here")


if __name__ == "__main__":
    sys.exit(main())
