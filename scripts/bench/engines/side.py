"""One side of a comparison: a vLLM server, and the store it keeps its pages in, if it has one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from stores.store import Store

from deployment import metrics
from deployment.engine import forget_prefixes
from deployment.http import Event, HttpFailure, Server
from engines.journal import JournalFile
from engines.names import PROBE, PROFILE_FILE, SCHEDULER, STEPS_FILE
from engines.processes import Thread, command, cpu, hold, let_go, tree
from environment.checkout import MODEL

NAME = "smollm2"
FLAGS = (
    f"--model {MODEL} --served-model-name {NAME} --host 127.0.0.1 --dtype float32 --enforce-eager"
    f" --block-size 32 --max-model-len 4608"
    f" --prefix-caching-hash-algo sha256_cbor --disable-uvicorn-access-log --scheduler-cls {SCHEDULER}"
    f" --worker-extension-cls {PROBE}"
)
VLLM_ROLES = {"VLLM::Eng": "engine core", "VLLM::Wor": "worker"}
ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception)\b:")
SHARED_MEMORY = Path("/dev/shm")
START_S = 600.0
STOP_S = 60.0
REJOIN_S = 30.0
FORGET_S = 30.0


class SideFailed(Exception):
    """This side cannot be measured, or no longer; says why."""


class Side:
    """A context manager. `store` None: vLLM alone. `profile`: the engine core's cProfile goes there at the end."""

    def __init__(
        self, name: str, folder: Path, store: Store | None, profile: Path | None = None, flags: Sequence[str] = ()
    ) -> None:
        self.name, self._store, self._flags = name, store, flags
        self._steps = folder / f"{name}.steps"
        self._log = folder / f"{name}.log"
        self._profile = profile
        self._held = False

    def __enter__(self) -> Side:
        port = _free_port()
        flags = [*FLAGS.split(), "--port", str(port), *self._flags]
        if self._store is not None:
            flags += ["--kv-transfer-config", json.dumps(self._store.transfer)]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in compute_cores()),
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            STEPS_FILE: str(self._steps),
        }
        if self._store is not None:
            environment |= self._store.environment
        if self._profile is not None:
            environment[PROFILE_FILE] = str(self._profile)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._store.python if self._store else sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.server = Server(port, timeout=600)
        self.journal = JournalFile(self._steps)
        return self

    def wait_ready(self) -> None:
        """Raises SideFailed with the end of the log."""
        deadline = time.monotonic() + START_S
        while self.server.status("/health")[0] != 200:
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = self._log.read_text(errors="replace").splitlines()
                tail = "\n".join(lines[-30:])
                raise SideFailed(f"vLLM ({self.name}) did not start: {_cause(lines)}\nThe end of its log:\n{tail}")
            time.sleep(0.2)
        if self._store is not None and self._store.populate:
            asked = {"method": "bench_populate", "args": [str(self._store.populate)]}
            if int(self.server.post("/collective_rpc", asked)["results"][0]) < self._store.populate:
                raise SideFailed(f"{self.name}: no memory of {self._store.populate} bytes was found in the engine's worker")

    @property
    def with_connector(self) -> bool:
        return self._store is not None

    @property
    def roots(self) -> list[int]:
        """Engine first."""
        return [self._process.pid, *(self._store.processes if self._store is not None else [])]

    def cpu(self) -> dict[Thread, float]:
        return cpu(self.roots)

    def roles(self) -> dict[int, str]:
        """What each process of this side is."""
        found = dict.fromkeys(tree(self._process.pid), "vLLM, other")
        for pid in found:
            name = command(pid)
            found[pid] = next((role for begin, role in VLLM_ROLES.items() if name.startswith(begin)), found[pid])
        found[self._process.pid] = "API server"
        if self._store is not None:
            for pid in self._store.processes:
                found |= dict.fromkeys(tree(pid), self._store.descendants)
            found |= self._store.processes
        return found

    def hold(self) -> None:
        hold(self.roots)
        self._held = True

    def let_go(self) -> None:
        """The store first, then the engine. Its session there may count as silent until the next beat."""
        let_go(reversed(self.roots))
        self._held = False

    def worker_threads(self) -> dict[int, str]:
        """Native id → name of the Python threads in the worker, which is a process of its own."""
        (names,) = self.server.post("/collective_rpc", {"method": "bench_threads"})["results"]
        return {int(native): name for native, name in names.items()}

    def profile_worker(self) -> None:
        """Starts it, and with the second call ends it."""
        if self._profile is not None:
            self.server.post("/collective_rpc", {"method": "bench_profile"})

    def loaded(self) -> float | None:
        """What the store itself has counted of loads so far, in units of its own; None without a store that counts."""
        return self._store.loaded(self.server) if self._store is not None and self._store.loaded is not None else None

    def total(self, name: str, **labels: str) -> float:
        return metrics.take(self.server).total(name, **labels)

    def forget_local(self) -> None:
        """Empties vLLM's own prefix cache, and only that. Waits until no save pins a block any more; raises SideFailed."""
        if not forget_prefixes(self.server, FORGET_S):
            raise SideFailed(f"{self.name}: blocks are held for ever; the prefix cache cannot be reset")

    def complete(self, prompt: list[int], tokens: int) -> None:
        """One answer of exactly `tokens` ids. Raises HttpFailure."""
        self.server.post("/v1/completions", _body(prompt, tokens))

    def scored(self, prompt: list[int], tokens: int) -> tuple[list[str], list[float]]:
        """As `complete`: the tokens of the answer, and the logarithms of their probabilities."""
        (choice,) = self.server.post("/v1/completions", _body(prompt, tokens) | {"logprobs": 1})["choices"]
        return choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]

    def stream(self, prompt: list[int], tokens: int) -> Iterator[Event]:
        """The answer token by token; leaving the loop ends the request."""
        return self.server.stream("/v1/completions", _body(prompt, tokens))

    def first_token(self, prompt: list[int]) -> tuple[float, float]:
        """Seconds to the first token of a stream, and when it was asked (monotonic)."""
        asked = time.monotonic()
        for event in self.stream(prompt, 1):
            return event.after, asked
        raise HttpFailure(self.server.url(), 200, "no token came")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._held:
            let_go(reversed(self.roots))
        pids = tree(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._store is not None and self._store.leftovers:
            for pid in pids:
                for path in SHARED_MEMORY.glob(self._store.leftovers.format(pid=pid)):
                    path.unlink(missing_ok=True)


def _body(prompt: list[int], tokens: int) -> dict[str, object]:
    return {"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def _cause(lines: Sequence[str]) -> str:
    """The last error that a log names; what follows from it says less."""
    named = [line for line in lines if ERROR.search(line) and "Engine core initialization failed" not in line]
    return (named or lines or ["it said nothing"])[-1].strip()


def compute_cores() -> list[int]:
    """All but one, as vLLM chooses by itself without connector; with one it would take another number."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[:-1] or allowed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
