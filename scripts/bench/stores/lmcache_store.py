"""LMCache's multi-process server, and its connector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from children import Children, free_port
from layered_venv import layered_venv, packages_of
from private_venv import Missing, private_venv

from deployment import metrics
from deployment.http import Server

from .store import Store

PACKAGES: Final = (
    "lmcache==0.5.6",
    "aiofile==3.12.3",
    "aiofiles==25.1.0",
    "caio==0.12.10",
    "nvtx==0.2.17",
    "opentelemetry-exporter-prometheus==0.66b2",
)
"""Without what they say they need, which is CUDA's too; all but the first are what LMCache imports and vLLM does not bring."""
FLAGS: Final = ("--eviction-policy", "LRU", "--worker-reap-timeout-seconds", "0")
"""A held engine sends no heartbeat, and after 120 s its registration would be dropped."""
TRANSFER: Final = "lmcache_driven"
START_S: Final = 120.0
QUIET: Final = {"LMCACHE_TRACK_USAGE": "false"}


def lmcache_store(children: Children, pool_bytes: int, folder: Path) -> Store:
    """`pool_bytes`: in whole GiB. `folder`: for its log. Its processes end with `children`. Raises Missing."""
    log = folder.resolve() / "lmcache-server.log"
    python = layered_venv("lmcache-engine", packages_of(private_venv("lmcache", *PACKAGES, alone=True)))
    port, http = free_port(), free_port()
    size = str(pool_bytes >> 30)
    where = ["--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(http)]
    command = [python, "-m", "lmcache.cli.main", "server", *where, "--l1-size-gb", size, "--l1-init-size-gb", size, *FLAGS]
    server = children.spawn(command, log=str(log), environment=QUIET)
    end = time.monotonic() + START_S
    while Server(http).status("/healthcheck")[0] != 200:
        if server.poll() is not None or time.monotonic() > end:
            said = log.read_text(errors="replace").splitlines()[-3:]
            raise Missing(f"lmcache server did not start (ended with {server.poll()}): {said}")
        time.sleep(0.1)

    def loaded(engine: Server) -> float:
        """Chunks."""
        return metrics.take(Server(http)).total("lmcache_mp_num_chunks_loaded_total")

    transfer = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
            "lmcache.mp.mp_transfer_mode": TRANSFER,
        },
    }
    about = f"{PACKAGES[0]}, LMCacheMPConnector, transfer mode {TRANSFER}, {' '.join(FLAGS)}"
    return Store(
        about,
        transfer,
        {server.pid: "server"},
        descendants="server's child",
        environment=QUIET,
        python=python,
        loaded=loaded,
        leftovers="lmcache_kv_{pid}_*",
    )
