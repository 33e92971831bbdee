"""An owner as no mover of ours is: one whose pool goes away under its readers, or that comes back under its old name.

`RogueOwner` starts this file as a process of its own: the real NIXL, the real metadata, a pool of memory nobody else maps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
import subprocess
import sys
from types import TracebackType

from pegaflow.services.tier.mover.agent import NixlAgent
from pegaflow.services.tier.mover.child import environment
from pegaflow.services.tier.mover.wire import Metadata


def contents(size: int, seed: int) -> bytes:
    """What its pool holds: no MiB like another."""
    return random.Random(seed).randbytes(size)


class RogueOwner:
    """A context manager; its process is gone at the end. `name`, `metadata`, `base`, `size`: as a mover's."""

    def __init__(self, ucx: dict[str, str], size: int, name: str = "rogue", token: str = "0" * 32, seed: int = 1) -> None:
        self.name, self.size, self.seed = name, size, seed
        self._process = subprocess.Popen(
            [sys.executable, __file__, f"{name}:{token}", str(size), str(seed)],
            env=environment(os.environ, ucx),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.metadata = bytes.fromhex(self._process.stdout.readline())
        self.base = Metadata.unpack(self.metadata).base

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, *words: str | int) -> None:
        """`deregister`, `unmap OFFSET LENGTH` or `fill SEED`; back when it is done."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def __enter__(self) -> RogueOwner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main(agent_name: str, size: int, seed: int) -> None:
    """Serves its pool until it is killed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # over TCP it is to crash
    memory = mmap.mmap(-1, size)
    memory[:] = contents(size, seed)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    agent = NixlAgent(agent_name)
    print(Metadata(agent_name, base, size, agent.register(base, size)).pack().hex(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["deregister"]:
                nixl = agent._nixl
                agent._agent.deregisterMem(nixl.nixlRegDList(nixl.DRAM_SEG, [(base, size, 0, "")]), [agent._backend])
            case ["unmap", offset, length]:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.munmap(ctypes.c_void_p(base + int(offset)), ctypes.c_size_t(int(length))):
                    raise OSError(ctypes.get_errno(), "munmap")
            case ["fill", other]:
                memory[:] = contents(size, int(other))
            case words:
                raise ValueError(f"unknown: {words}")
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
