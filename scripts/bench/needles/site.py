"""The deployment that prompts are sent to: P + tier a, D + tier b, router, metaserver, both tiers with a disk level.

    reference ─▶ start ─▶ (asked) ─▶ lose_b ─▶ (asked) ─▶ to_disk, lose_memory ─▶ (asked)

One vLLM alone runs before the others and not beside them: all three get the same compute cores, and one request runs at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from engines.side import compute_cores

from deployment import counters, metrics
from deployment import plan as planning
from deployment.cases import BLOCK_SIZE, PromptMaker
from deployment.counters import Counters
from deployment.engine import forget_prefixes, saves
from deployment.http import Server
from deployment.plan import ENGINE_FLAGS
from deployment.ports import Ports
from deployment.readiness import wait_all, wait_until
from deployment.supervision import SERVICES, Supervision, wait_for
from environment.complaint import Complaint
from environment.progress import step

from .prompts import CHUNK

MODEL_LEN: Final = 8192
FLAGS: Final = f"{ENGINE_FLAGS} --max-model-len {MODEL_LEN} --max-num-batched-tokens {CHUNK}"
PAGE_BYTES: Final = 30 * 2 * 3 * 64 * 4 * BLOCK_SIZE
"""SmolLM2-135M in float32: layers, keys and values, heads, their width."""
LEAST_POOL, MOST_POOL = 1 << 30, 2 << 30
EVICT_HIGH, EVICT_LOW = 0.7, 0.65
"""Room ahead of need for the longest prompt, and for a batch of prompts to stay in tier a's memory."""
NOTHING: Final = 1e-6
"""Watermark above which no page stays in memory."""
TIMEOUT_SECONDS: Final = 600.0
FORGET_SECONDS: Final = 30.0
ATTACH_SECONDS: Final = 30.0
DISK_SECONDS: Final = 300.0
FIND_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 1.5
"""vLLM publishes statistics within a second."""


class Site:
    """A context manager; at its end everything is stopped and what it wrote is removed. `disk` is an empty folder.

    `pages`: that shall find room on disk.
    """

    def __init__(self, run: Path, disk: Path, ports: Ports, pages: int) -> None:
        self.ports = ports
        self._disk = disk
        self._disk_mib = disk_bytes(pages) >> 20
        self._config = run / "accuracy.toml"
        self._plan = planning.make(run, ports, engine=FLAGS, pool_size=str(pool_bytes(pages)), config=self._config)
        self._supervision = Supervision(self._plan)
        self._prompts = PromptMaker(self._plan.model, self._plan.model_name)
        self._probes = 0
        self.model_name = self._plan.model_name
        self.p, self.d, self.router = (Server(port, TIMEOUT_SECONDS) for port in (ports.p, ports.d, ports.router))

    def __enter__(self) -> Site:
        self._configure(EVICT_HIGH, EVICT_LOW)
        os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
        # vLLM gives an engine with a connector other cores; a matrix that is cut in another way has other last bits.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in compute_cores())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with step("stop everything"):
            self._supervision.stop()

    @contextmanager
    def reference(self) -> Iterator[Server]:
        """One vLLM alone, without connector, for as long as the body takes. The first that is started."""
        self._supervision.start(["reference"])
        wait_all(self._supervision, ["reference"], self.ports)
        yield Server(self.ports.reference, TIMEOUT_SECONDS)
        with step("stop that vLLM"):
            self._supervision.stop_one("reference")

    def start(self) -> None:
        """Everybody else. Raises Complaint."""
        for name in SERVICES:
            self._supervision.start_one(name)
        wait_all(self._supervision, SERVICES, self.ports)
        self._attached()

    def forget_prefixes(self) -> None:
        """P and D lose their own caches. Raises Complaint."""
        for name, engine in (("P", self.p), ("D", self.d)):
            if not forget_prefixes(engine, FORGET_SECONDS):
                raise Complaint("blocks_held", f"{name} holds blocks for ever; its prefix cache cannot be reset")

    def lose_b(self) -> None:
        """Tier b and D have nothing any more; tier a has what it had."""
        with step("restart tier b without its memory and its disk"):
            self._supervision.stop_one("tier-b")
            self._supervision.forget_pool("b")
            shutil.rmtree(self._disk / "b", ignore_errors=True)
            self._supervision.start_one("tier-b")
            self._whole()

    def to_disk(self, pages: int) -> None:
        """Whatever is in the tiers' memory goes out. Raises Complaint unless tier a has at least so many pages on disk then."""
        self._configure(NOTHING, NOTHING)
        for name in ("tier-a", "tier-b"):
            os.kill(self._supervision.process(name).pid, signal.SIGHUP)
        wait_until(f"tier a has {pages} pages on disk", lambda: self._tier_a("disk_pages") >= pages, DISK_SECONDS)
        self._configure(EVICT_HIGH, EVICT_LOW)

    def lose_memory(self, pages: int) -> int:
        """Both tiers are killed and lose their pools, P and D their own caches. Returns how many pages tier a found on disk,
        once it has found so many or does not in time.
        """
        with step("kill -9 both tiers and lose their memory"):
            for node in ("a", "b"):
                self._supervision.forget_pool(node)
                self._supervision.kill(f"tier-{node}")
            self._whole()
            wait_for(lambda: self._tier_a("disk_pages_found_total") >= pages, FIND_SECONDS)
        return round(self._tier_a("disk_pages_found_total"))

    def _whole(self) -> None:
        wait_all(self._supervision, ("tier-a", "tier-b"), self.ports)
        self._attached()
        self.forget_prefixes()

    def _attached(self) -> None:
        for name, engine, health in (("P", self.p, self.ports.tier_a_health), ("D", self.d, self.ports.tier_b_health)):
            wait_until(f"{name} saves into its tier", lambda e=engine, h=health: self._saves(e, h), ATTACH_SECONDS)  # type: ignore[misc]

        # What is counted for these prompts must not come in among those that are asked next.
        seen: list[Counters] = []

        def still() -> bool:
            seen.append(counters.read(self.ports))
            return seen[-2:-1] == seen[-1:]

        if not wait_for(still, ATTACH_SECONDS, poll_seconds=QUIET_SECONDS):
            raise Complaint("not_quiet", "somebody else sends requests to this deployment: its counters do not stand still")

    def _saves(self, engine: Server, health: int) -> bool:
        self._probes += 1
        return saves(engine, health, self._prompts.completion(f"mole {self._probes}", BLOCK_SIZE + 8))

    def _tier_a(self, name: str) -> float:
        return metrics.take(Server(self.ports.tier_a_health)).total(f"pegaflow_tier_{name}")

    def _configure(self, high: float, low: float) -> None:
        self._config.write_text(
            f'[tier]\ndisk_dir = "{self._disk}"\ndisk_size = "{self._disk_mib}MiB"\ndisk_queue = "512MiB"\n'
            f"evict_high = {high}\nevict_low = {low}\n",
            encoding="utf-8",
        )


def pool_bytes(pages: int) -> int:
    """Of each tier: room for all pages if that is not too much, and for the longest prompt beside them."""
    return LEAST_POOL if pages <= batch_pages(LEAST_POOL) else MOST_POOL


def batch_pages(pool: int) -> int:
    """So many pages of prompts stay in memory until they have been asked for in each way that needs them there."""
    return int(pool * EVICT_HIGH * 0.9) // PAGE_BYTES


def disk_bytes(pages: int) -> int:
    """Room for so many pages and what comes beside them."""
    return pages * PAGE_BYTES * 5 // 4 + (1 << 30)
