"""What can be found missing before anything is started."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from environment.checkout import CHECKOUT, CONFIGS
from environment.complaint import Complaint
from environment.levels import Level

GIB = 1 << 30
DISK_BYTES = {Level.BASE: 1 * GIB, Level.FULL: 6 * GIB}
"""The full environment takes 4 GB, the model 0.3 GB, pip's temporary files the rest."""
MEMORY_BYTES = {Level.BASE: GIB // 2, Level.FULL: 3 * GIB}
"""Converting the model peaks at about 2 GB."""


def check_machine(level: Level) -> None:
    """Raises Complaint for a machine on which set-up of `level` cannot end well."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        found = f"{sys.platform} {platform.machine()}"
        raise Complaint("wrong_platform", f"the pinned packages are for linux x86_64, this is {found}")
    if sys.version_info >= (3, 15):
        raise Complaint("wrong_python", f"needs Python 3.11 to 3.14, this is {platform.python_version()}; set PYTHON=…")
    check_disk(CHECKOUT, DISK_BYTES[level])
    check_memory(MEMORY_BYTES[level])
    if importlib.util.find_spec("ensurepip") is None and importlib.util.find_spec("pip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Complaint(
            "no_pip", f"{sys.executable} has neither ensurepip nor pip: install your system's package "
            f"python{version}-venv or python3-pip (Debian: apt-get install python{version}-venv)"
        )  # fmt: skip


def check_disk(place: Path, needed: int) -> None:
    """Raises Complaint when the file system of `place` (or of its nearest existing parent) has less than `needed` bytes."""
    existing = next(path for path in [place, *place.parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise Complaint("no_space", f"{existing} has {free / GIB:.1f} GiB free, needed are {needed / GIB:.1f}")


def check_memory(needed: int) -> None:
    """Raises Complaint when fewer than `needed` bytes are available to this process."""
    available = memory_available()
    if available < needed:
        text = f"{available / GIB:.1f} GiB of memory are available, needed are {needed / GIB:.1f}"
        raise Complaint("no_memory", text)


def memory_available() -> int:
    """Bytes that can still be used: the kernel's estimate, or less where a control group says so."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            break
    else:
        raise Complaint("no_meminfo", "/proc/meminfo has no MemAvailable")
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return available  # no control group of our own
    return available if limit == "max" else min(available, int(limit) - used)


def check_torch(python: Path) -> None:
    """Raises Complaint when pip cannot reach the CPU build of torch, with the way to make it.

    Args:
        python: interpreter whose pip is asked; nothing is installed.
    """
    wanted = next(line for line in (CONFIGS / "requirements-cpu.txt").read_text().splitlines() if line.startswith("torch=="))
    asked = subprocess.run(
        [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode:
        tail = "\n    ".join(line for line in asked.stderr.splitlines() if line.startswith("ERROR"))
        raise Complaint(
            "no_cpu_torch",
            f"pip cannot find {wanted} for Python {platform.python_version()}:\n    {tail}\n"
            "  The CPU build is not in pip's default index. PyTorch's page 'Get started' (pytorch.org; choose Linux, Pip, CPU)\n"
            "  shows the address of the CPU wheel index after --index-url. Give it to pip as a second index and try again:\n"
            "    PIP_EXTRA_INDEX_URL=<that address> scripts/setup\n"
            "  or for good: pip config set global.extra-index-url <that address>. A folder with the wheel works as well:\n"
            "    PIP_FIND_LINKS=<folder> scripts/setup",
        )
