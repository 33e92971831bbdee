"""What the tests with real engines share: folders, models, tiers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster

from .engine import apart
from .models import Tiny, make


def make_models(folder: Path) -> dict[Tiny, Path]:
    made = {kind: folder / kind for kind in Tiny}
    for kind, path in made.items():
        apart(make, kind, path)
    return made


@contextmanager
def two_tiers() -> Iterator[Cluster]:
    """Tiers "a" and "b" that do not move pages to each other."""
    runtime = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    runtime.mkdir(mode=0o700)
    with Cluster(runtime, mover=False, pool="512MiB") as made:
        made.wait_ready()
        yield made
