"""Where a deployment lives and what it is told: everything that the files of configs/supervisor/ expand."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deployment.ports import HOST, Ports
from environment.checkout import CONFIGS, MODEL

ENGINE_FLAGS = (
    # float32: batched bfloat16 is not batch-invariant on CPU, so two correct runs can differ in their tokens
    "--dtype float32 --enforce-eager --block-size 32 --max-model-len 2048"
    # vLLM's default hash pickles its input; other processes cannot derive it
    " --prefix-caching-hash-algo sha256_cbor --disable-uvicorn-access-log"
    # what tools need; this parser takes any tokenizer
    " --enable-auto-tool-choice --tool-call-parser hermes"
)
MODEL_NAME = "smollm2"
MEMORY = Path("/dev/shm")
FILES = 16384
"""Open files of each process, where the machine allows as many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`run` keeps logs and results, `runtime` (short, temporary) sockets and locks, `pool` (tmpfs) the pages."""

    run: Path
    runtime: Path
    pool: Path
    ports: Ports
    model: Path = MODEL
    model_name: str = MODEL_NAME
    engine: str = ENGINE_FLAGS
    p: str = ""
    d: str = ""
    kv_gib: int = 1
    pool_size: str = "1GiB"
    config: Path = CONFIGS / "pegaflow.toml"

    @property
    def bin(self) -> Path:
        """Where this environment has python, supervisord and the pegaflow-* commands."""
        return Path(sys.executable).parent

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def supervisor_socket(self) -> Path:
        return self.runtime / "supervisor.sock"

    def environment(self) -> dict[str, str]:
        """This process's environment and the DEPLOY_ variables."""
        deploy = {
            "AUTOSTART": "false",
            "RUN": self.run,
            "RUNTIME": self.runtime,
            "POOL": self.pool,
            "POOL_SIZE": self.pool_size,
            "BIN": self.bin,
            "CONFIG": self.config,
            "MODEL": self.model,
            "MODEL_NAME": self.model_name,
            "ENGINE": self.engine,
            "P": self.p,
            "D": self.d,
            "KV_GIB": self.kv_gib,
            "FILES": _files(),
            "METASERVER_KEY": "",  # no keys on loopback
        }
        deploy |= {f"{name.upper()}_PORT": port for name, port in dataclasses.asdict(self.ports).items()}
        return {**os.environ, **{f"DEPLOY_{name}": str(value) for name, value in deploy.items()}}

    def operator(self) -> dict[str, str]:
        """What `pegaflow` needs in its environment to look at all of this deployment."""
        return {
            "PEGAFLOW_CLI_METASERVER": f"tcp://{HOST}:{self.ports.metaserver_requests}",
            "PEGAFLOW_CLI_ROUTER": f"tcp://{HOST}:{self.ports.router_control}",
        }

    def save(self) -> None:
        """Beside the logs, for a later `--stop`."""
        text = json.dumps(
            {"runtime": str(self.runtime), "pool": str(self.pool), "ports": dataclasses.asdict(self.ports)}, indent=2
        )
        (self.run / "deployment.json").write_text(text + "\n")


def _files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)


def make(run: Path, ports: Ports, **options: str | int | Path) -> Plan:
    """A plan with its folders made. :meth:`Supervision.stop` removes `runtime` and `pool`."""
    (run / "log").mkdir(parents=True, exist_ok=True)
    # Not under `run`: a checkout can lie so deep that a socket's path would exceed 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="pegaflow-"))
    pool = Path(tempfile.mkdtemp(prefix="pegaflow-", dir=MEMORY))
    for node in ("a", "b"):
        (runtime / node).mkdir(mode=0o700)
    return dataclasses.replace(Plan(run=run, runtime=runtime, pool=pool, ports=ports), **options)  # type: ignore[arg-type]


def load(run: Path) -> Plan | None:
    """The plan that was saved in `run`, or None."""
    try:
        saved = json.loads((run / "deployment.json").read_text())
    except FileNotFoundError:
        return None
    return Plan(run=run, runtime=Path(saved["runtime"]), pool=Path(saved["pool"]), ports=Ports(**saved["ports"]))
