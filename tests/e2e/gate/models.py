"""Tiny models with random weights, made from a seed. At the usual initialisation such a model repeats one token whatever its
context; scaled up, its answer depends on every page (test_engine_gate.py shows that it does)."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from deployment import tiny_model

VOCABULARY = 2000


class Tiny(StrEnum):
    LLAMA = "llama"
    MLA = "mla"


BLOCK_SIZE = {Tiny.LLAMA: 32, Tiny.MLA: 16}
"""MLA on a CPU has no other."""

ARGS: dict[Tiny, dict[str, Any]] = {
    Tiny.LLAMA: {},
    # vLLM 0.32's own rotary kernel for a CPU turns the wrong numbers where the rotated part is a slice of each head, as with MLA:
    # without any connector a batch is answered otherwise than its parts, and decoding otherwise than prefill (14 prompts of 20).
    Tiny.MLA: {"compilation_config": {"custom_ops": ["none"]}},
}
"""What vLLM has to be told so that it computes these models right."""


def make(kind: Tiny, folder: Path) -> None:
    """Writes config and weights. Runs in a process forked from the preloaded one: torch and transformers are there."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.manual_seed(1)
    model, scale = (tiny_model.llama(VOCABULARY), tiny_model.SCALE) if kind is Tiny.LLAMA else (_mla(), 4.0)
    tiny_model.scaled(model, scale).save_pretrained(folder)


def _mla() -> Any:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        # smaller latents and heads are refused by vLLM's kernels
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        head_dim=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=3,
        moe_intermediate_size=64,
        tie_word_embeddings=False,
        rope_scaling=None,
    )
    return DeepseekV2ForCausalLM(config)
