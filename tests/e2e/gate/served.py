"""An engine's own side: runs in a process forked for it, and does what the test says over a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EngineSpec:
    """What to start. `args`: vLLM's engine arguments beside those that all engines of the gate have."""

    model: Path
    args: dict[str, Any] = field(default_factory=dict)
    transfer: dict[str, Any] | None = None
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Produced ids, and how many of the prompt's positions vLLM did not compute."""

    ids: tuple[int, ...]
    cached: int


def serve(connection: Connection, spec: EngineSpec, log: Path) -> None:
    """The process's main function: answers (name, arguments) with (True, result) or (False, text) until "stop"."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(spec.environ)
    asyncio.run(_serve(connection, spec))
    sys.stdout.flush()


def call(connection: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    """The main function of a process that makes one call and answers like `serve`."""
    try:
        connection.send((True, function(*arguments)))
    except Exception:
        connection.send((False, traceback.format_exc()))


async def _serve(connection: Connection, spec: EngineSpec) -> None:
    loop = asyncio.get_running_loop()
    try:
        engine = _Served(spec)
    except Exception:
        connection.send((False, traceback.format_exc()))
        return
    connection.send((True, None))
    while True:
        try:
            name, arguments = await loop.run_in_executor(None, connection.recv)
        except EOFError:
            break
        if name == "stop":
            break
        try:
            connection.send((True, await getattr(engine, name)(*arguments)))
        except Exception:
            connection.send((False, traceback.format_exc()))
    engine.close()
    connection.close()


class _Served:
    """vLLM as its API server runs it: this process serves, the engine core is a process of its own, so are ranks beyond one."""

    def __init__(self, spec: EngineSpec) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.core import EngineCore

        from .held import fingerprint, held

        # The core's process inherits these, and answers for them by name.
        for function in (held, fingerprint):
            setattr(EngineCore, function.__name__, function)
        given: dict[str, Any] = {
            "model": str(spec.model),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            # Batched bfloat16 is not batch-invariant on CPU: two correct runs could differ.
            "dtype": "float32",
            "prefix_caching_hash_algo": "sha256_cbor",
            "max_model_len": 1024,
            "kv_cache_memory_bytes": 192 << 20,
            **spec.args,
        }
        if spec.transfer is not None:
            given["kv_transfer_config"] = spec.transfer
        config = AsyncEngineArgs(**given).create_engine_config()
        # The CPU platform asks for spawn, so that threads can be bound before OpenMP loads; here they are not bound.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        self._llm = AsyncLLM.from_vllm_config(config)
        self._asked = 0

    async def generate(self, prompts: list[list[int]], max_tokens: int, together: bool) -> list[Answer]:
        """All prompts at once or one after the other, greedy, exactly `max_tokens` each."""
        if together:
            return list(await asyncio.gather(*(self._one(prompt, max_tokens) for prompt in prompts)))
        return [await self._one(prompt, max_tokens) for prompt in prompts]

    async def _one(self, prompt: list[int], max_tokens: int) -> Answer:
        from vllm import SamplingParams

        self._asked += 1
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate({"prompt_token_ids": prompt}, params, f"r{self._asked}")
        *_, output = [output async for output in outputs]
        return Answer(tuple(output.outputs[0].token_ids), output.num_cached_tokens or 0)

    async def reset(self) -> bool:
        """Empties vLLM's own prefix cache; False if blocks are in use."""
        return bool(await self._llm.reset_prefix_cache())

    async def held(self) -> dict[str, int]:
        """What the engine core holds, see `held.py`."""
        found: dict[str, int] = await self._llm.engine_core.call_utility_async("held")
        # Statistics that came before this answer may still be on their way to the counters.
        outputs = self._llm.engine_core.outputs_queue
        while not outputs._getters:
            await asyncio.sleep(0)
        return found

    async def fingerprint(self) -> str:
        found: str = await self._llm.engine_core.call_utility_async("fingerprint")
        return found

    async def counters(self) -> dict[str, float]:
        """vLLM's and the connector's counters as on `/metrics`, by name and our label: `pegaflow_loads_total{done}`."""
        from prometheus_client import REGISTRY

        values: dict[str, float] = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                if sample.name.endswith("_total") and sample.name.startswith(("pegaflow_", "vllm:")):
                    label = ",".join(v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine"))
                    name = f"{sample.name}{{{label}}}" if label else sample.name
                    values[name] = values.get(name, 0) + sample.value
        return values

    def close(self) -> None:
        self._llm.shutdown()
