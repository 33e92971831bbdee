"""Hardware, model and load in figures. Each has its source in docs/scaling.md; change them by name on the command line."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """One node with eight H200 and its network. Rates in bytes per second, times in seconds."""

    nic: float = 400e9 / 8
    """One 400 Gb/s card of the eight that a DGX H200 has: a tier has one NIXL agent."""
    read_latency: float = 5e-6
    """Of a READ, before its first byte; the mover's hop is a message and counted as one."""
    wire: float = 108e-6
    """A message from node to node, one way: half of Pingmesh's median round trip inside a pod."""
    hop: float = 40e-6
    """A message between two processes of one node, one way: half of an ipc round trip measured here, rounded."""
    copy: float = 55e9
    """Device ↔ pool over PCIe 5 x16, per rank."""
    hash: float = 12e9
    """xxh3_128 from memory on one thread: what one core reads, not the 23 GiB/s of the hash itself. Tiers have up to four."""
    disk_read: float = 8 * 6.5e9
    disk_write: float = 8 * 3.5e9
    """Eight U.2 NVMe drives."""
    disk_latency: float = 100e-6


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: GLM-5.2 shaped, MLA at TP 8. Rates in tokens per second and node."""

    block: int = 64
    token_bytes: int = 53_940
    ranks: int = 8
    prefill: float = 73_700 * (1 - 0.563)
    """DeepSeek's 73.7k input tokens per second and node count cache hits, 56.3 %; what is computed is the rest."""
    step_tokens: int = 8192
    tpot: float = 1 / 21
    """DeepSeek: 20 to 22 output tokens per second and user."""

    @property
    def page_bytes(self) -> int:
        return self.block * self.token_bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop users. Lengths in tokens are means of a geometric (turns) or exponential distribution.

    `utilisation`: of the prefill engines, if two thirds of all prompt tokens come from a cache. `think`: seconds between turns,
    compressed; a pool of the same fraction keeps the hit rate (docs/scaling.md).
    """

    utilisation: float = 0.6
    turns: float = 2.5
    user: int = 3000
    output: int = 182
    system: int = 1024
    systems_per_node: float = 4.0
    zipf: float = 1.0
    think: float = 2.0
    reuse: float = 0.66

    @property
    def prompt(self) -> float:
        """Mean tokens of a prompt: the system's, this turn's, and those of the turns before."""
        return self.system + self.user + (self.turns - 1) * (self.user + self.output)

    def requests(self, model: Model) -> float:
        """Per second and prefill node."""
        return self.utilisation * model.prefill / (self.prompt * (1 - self.reuse))
