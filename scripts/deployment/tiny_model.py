"""A tiny model with random weights and the real model's tokenizer: engines that answer in milliseconds, for soaks and faults.

At the usual initialisation such a model repeats one token whatever its context; scaled up, its answer depends on every page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from environment.checkout import MODEL

SCALE: Final = 6.0
FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
VOCABULARY: Final = 49152
"""Of the tokenizer."""


def make(folder: Path) -> None:
    """Writes config, weights and tokenizer into `folder`, in a process of its own: torch stays out of the caller."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, folder)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "deployment.tiny_model", folder], check=True, env=environment)


def llama(vocabulary: int) -> Any:
    """A Llama of four layers, not yet scaled. Needs transformers; 2 KiB of KV per position in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def scaled(model: Any, scale: float) -> Any:
    """The same model with all weights but those of norms times `scale`."""
    import torch

    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" not in name:
                weights.mul_(scale)
    return model


if __name__ == "__main__":
    import torch

    torch.manual_seed(1)
    scaled(llama(VOCABULARY), SCALE).save_pretrained(sys.argv[1])
