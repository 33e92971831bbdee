"""The clock and the randomness of the shells; pure cores get both as arguments."""

from __future__ import annotations

import secrets
import time


def now() -> float:
    """Seconds on CLOCK_BOOTTIME: never set back, the same for all processes of a machine, counts suspend.

    Leases are promises about memory: a clock that stops while the machine sleeps would let a reader trust
    one that its owner, awake again, has long ended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def random_u64() -> int:
    """A random 64-bit number, never 0: epochs and tokens use 0 for "none"."""
    return secrets.randbelow((1 << 64) - 1) + 1
