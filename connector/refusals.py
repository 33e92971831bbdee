"""What the connector refuses at start, each with what to change.

Everything here is something that would otherwise be stored wrongly, fail users' requests, or wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from pegaflow.connector.engine import Engine
from pegaflow.connector.options import Options, StartRefused

ATTENTION_KINDS = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
"""Every row of a block depends on its own prefix only, and every block is kept until the request ends."""

SPECULATION_WITHOUT_KV = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})


def refuse_unsupported(options: Options, engine: Engine) -> None:
    """Raises StartRefused with all that is wrong in one text; its code is that of the first."""
    found = [*_options(options, engine), *_engine(options, engine)]
    if found:
        raise StartRefused(found[0][0], "; ".join(text for _, text in found))


def _options(options: Options, engine: Engine) -> Iterator[tuple[str, str]]:
    if options.loads and engine.role == "kv_producer":
        yield (
            "producer_cannot_load",
            f"pegaflow.mode={options.mode} loads, but kv_role is kv_producer, for which vLLM frees blocks that a running "
            "step still writes: set kv_role to kv_both, or pegaflow.mode to write_only",
        )
    policy = engine.load_failure_policy
    if options.strict:
        if not options.loads:
            yield "strict_needs_loads", "pegaflow.decode=strict needs pegaflow.mode read or read_write"
        if not options.pd_tail_load:
            yield (
                "strict_needs_tails",
                "pegaflow.decode=strict would fail every prompt that does not end with a block: set "
                "pegaflow.pd_tail_load to true",
            )
        if policy != "fail":
            yield (
                "strict_needs_fail",
                f"pegaflow.decode=strict needs kv_load_failure_policy=fail, not {policy}: else vLLM computes what is missing",
            )
    elif options.loads and policy != "recompute":
        yield (
            "recompute_needs_policy",
            f"kv_load_failure_policy is {policy}, so each failed load would fail a user's request: set it to recompute, "
            "or pegaflow.decode to strict",
        )
    if options.saves and engine.scheduling_policy == "priority":
        yield (
            "priority_scheduling",
            "blocks from vLLM's own prefix cache are offered to the tier, which is not safe with priority scheduling: "
            "set the scheduling policy to fcfs, or pegaflow.mode to read",
        )


def _engine(options: Options, engine: Engine) -> Iterator[tuple[str, str]]:
    if engine.speculation is not None and engine.speculation not in SPECULATION_WITHOUT_KV:
        yield (
            "speculation",
            f"speculative method {engine.speculation}: the KV of a block's last row would depend on the next token; use "
            "ngram, or none",
        )
    if len(engine.groups) != 1:
        yield (
            "cache_groups",
            f"the model has {len(engine.groups)} KV cache groups (hybrid attention); only models with one are supported",
        )
    for layer in (layer for group in engine.groups for layer in group):
        # One layer tells it all: the rest of them would repeat the text up to a hundred times.
        if layer.replay:
            yield "prefix_replay", f"layer {layer.name} replays {layer.replay} tokens of a prefix; this is not supported"
            break
        if layer.window is not None:
            yield (
                "sliding_window",
                f"layer {layer.name} attends to a window of {layer.window} tokens, so its old blocks are not whole; "
                "sliding-window and chunked attention are not supported, with or without the hybrid cache manager",
            )
            break
        if layer.kind not in ATTENTION_KINDS:
            yield "attention_kind", f"layer {layer.name} has a {layer.kind}; only full attention and MLA are supported"
            break
    for layer in (layer for group in engine.groups for layer in group if layer.compressed):
        yield "compressed_states", f"layer {layer.name} keeps one state for several tokens, so a tail has no rows of its own"
        break
    for name, size in (("decode", engine.dcp), ("prefill", engine.pcp)):
        if size > 1:
            yield "context_parallel", f"{name} context parallel size {size} splits blocks over ranks: set it to 1"
    if engine.hash_block_size <= 0 or engine.block_size % engine.hash_block_size:
        yield (
            "hash_granularity",
            f"block hashes cover {engine.hash_block_size} tokens, which does not divide the block size {engine.block_size}",
        )
    if engine.dynamic_kv_scales:
        yield "dynamic_kv_scales", "KV scales computed at run time differ per engine: set calculate_kv_scales to false"
