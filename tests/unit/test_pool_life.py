"""The end of a life of the pool: left to the next one, unless something may still touch it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.pool_life import PoolLife


def opened(folder: Path, warm: bool = True) -> PoolLife:
    config = TierConfig(node="a", runtime_dir=folder / "run", pool_dir=folder, pool_size=1 << 20, warm_restart=warm)
    life = PoolLife(config, Lifecycle("tier"), lambda event: None)
    asyncio.run(life.open(1))
    return life


@pytest.mark.parametrize("warm", [True, False])
def test_a_pool_that_a_hanging_call_may_still_touch_stays_mapped_and_locked(tmp_path: Path, warm: bool) -> None:
    life = opened(tmp_path, warm)
    with life.pool.memory[:4096] as page:  # as a call that does not come back
        life.close(in_use=True)
        page[:4] = b"late"
        with pytest.raises(LocalError, match="another tier uses"):
            opened(tmp_path)
    assert life.pool.path.exists() == warm
    life.pool.close(keep=warm)  # what the end of the process does
    after = opened(tmp_path)
    assert after.pool.adopted == warm and bytes(after.pool.memory[:4]) == (b"late" if warm else bytes(4))
    after.close()
