"""The test's side of a real vLLM engine: one object, one new engine, whose processes are forked from one that has imported
everything (`preload.py`)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from cluster import Cluster, until

from .keys import Keys
from .served import Answer, EngineSpec, call, serve

START_S = 120.0
ANSWER_S = 240.0
TESTS = Path(__file__).resolve().parents[2]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.preload"])
    return context


def _process(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A forked process and the pipe to it."""
    context = _context()
    ours, theirs = context.Pipe()
    before = os.environ.get("PYTHONPATH")
    # The fork server is started by the first process, and has to find the preloaded module.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([before] if before else [])])
    try:
        process = context.Process(target=target, args=(theirs, *arguments))
        process.start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    theirs.close()
    return process, ours


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns, called in a process where everything heavy is imported."""
    process, pipe = _process(call, function, *arguments)
    with pipe:
        ok, result = pipe.recv()
    process.join()
    process.close()
    assert ok, result
    return result


def transfer(cluster: Cluster, node: str, mode: str = "read_write", **options: Any) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` for an engine at this tier."""
    return transfer_in(cluster.runtime(node), mode, **options)


def transfer_in(runtime: Path, mode: str = "read_write", **options: Any) -> dict[str, Any]:
    """The same, for the tier whose runtime directory that is."""
    extra = {"pegaflow.runtime_dir": str(runtime), "pegaflow.mode": mode}
    extra |= {f"pegaflow.{name}": value for name, value in options.items()}
    return {
        "kv_connector": "PegaKVConnector",
        "kv_connector_module_path": "pegaflow.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


class Engine:
    """A context manager: at its end the engine has ended, by itself and without an error."""

    def __init__(self, spec: EngineSpec, log: Path) -> None:
        self.log = log
        self._process, self._pipe = _process(serve, spec, log)
        self._answer(START_S)

    def generate(self, prompts: list[list[int]], max_tokens: int, together: bool = True) -> list[Answer]:
        return cast(list[Answer], self._ask("generate", prompts, max_tokens, together))

    def reset(self) -> None:
        """Empties vLLM's own prefix cache: what is found from now on, comes from the tier."""
        until("vLLM's prefix cache is empty", lambda: self._ask("reset"))

    def idle(self) -> dict[str, float]:
        """Waits until the engine core holds nothing any more; the counters then."""
        found: dict[str, int] = {}

        def nothing() -> bool:
            found.update(self._ask("held"))
            return not any(found.values())

        try:
            until("an idle engine", nothing)
        except AssertionError as error:
            raise AssertionError(f"still held: {found}") from error
        return cast(dict[str, float], self._ask("counters"))

    def keys(self, block_size: int) -> Keys:
        """How this engine's pages are called."""
        return Keys(bytes.fromhex(self._ask("fingerprint")), block_size)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.is_alive():
            self._pipe.send(("stop", ()))
        self._pipe.close()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        assert error is not None or code == 0, self._failed(f"exit code {code}")

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        return self._answer(ANSWER_S)

    def _answer(self, seconds: float) -> Any:
        assert self._pipe.poll(seconds), self._failed(f"no answer within {seconds} s")
        try:
            ok, result = self._pipe.recv()
        except EOFError:
            ok, result = False, "the engine's process ended"
        assert ok, self._failed(result)
        return result

    def _failed(self, what: str) -> str:
        return f"{what}\nlast lines of the engine's log:\n" + "".join(
            self.log.read_text(errors="replace").splitlines(keepends=True)[-60:]
        )
