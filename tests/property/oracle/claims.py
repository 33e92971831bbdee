"""A claim has to be of what the request is now, out of the tier's present life."""

from __future__ import annotations

from collections import Counter

from pegaflow.connector.load_tracker import Load

from oracle.prefixes import BLOCK
from oracle.request import Request
from oracle.shape import Shape
from oracle.tier import Tier
from oracle.verdict import Verdict


def check_claim(
    load: Load, request: Request, first: int, blocks: list[int], tier: Tier, shape: Shape, verdict: Verdict, seen: Counter[str]
) -> None:
    """`load` is what the ranks are told; `blocks`, from block `first` of the request on, is what vLLM waits for."""
    verdict.demand(list(load.blocks) == blocks, "a load into other blocks than it claims")
    seen["claims"] += 1
    if load.refuse or load.lease is None:
        verdict.demand(shape.options.strict, f"a refused load without strict decode: {load.refuse}")
        seen["refusals"] += 1
        return
    if load.lease.session != tier.session():
        verdict.demand(False, "a claim out of another session")
        return
    verdict.demand(tier.in_use(load.lease), "a claim without a lease in use")
    seen["claims_expired"] += tier.leases[load.lease].expired
    seen["claims_tail"] += load.tail
    right = len(load.slots) == len(load.generations) == len(blocks) * tier.shards
    verdict.demand(right, "slots and blocks differ in number")
    end = request.num_computed_tokens
    truth = request.rows(end)
    for place, slot in enumerate(zip(load.slots, load.generations, strict=False)):
        start = (first + place // tier.shards) * BLOCK
        rows = tier.page_of(slot)
        wanted = truth[start : min(end, start + BLOCK)]
        verdict.demand(rows[: len(wanted)] == wanted, f"{load.request_id} claims a page that is not of it")
