"""A tier that is killed or stopped, and what its next life makes of the pool: real services, real mappings, real locks."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import PAGE_BYTES, Cluster, Engine, make_keys, page_bytes, told, until
from pegaflow.common import clock
from pegaflow.common.pool import GRANULE
from pegaflow.common.slot_table import HEADER_BYTES

pytestmark = pytest.mark.timeout(120)


def folder() -> Path:
    made = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # No scrubber: it would verify pages before anybody uses them.
    with Cluster(folder(), more=["--scrub-rate", "0"]) as made:
        made.wait_ready()
        yield made


@pytest.fixture
def single() -> Iterator[Cluster]:
    """One tier without a mover: it starts in a moment."""
    with Cluster(folder(), tiers="a", mover=False) as made:
        made.wait_ready()
        yield made


def state(cluster: Cluster, node: str = "a") -> dict[str, Any]:
    return told(cluster.endpoint(node))


def sealed(cluster: Cluster, count: int, node: str = "a") -> None:
    until("sealed", lambda: state(cluster, node).get("pages", {}).get("sealed") == count)


def again(cluster: Cluster, engine: Engine, node: str = "a") -> None:
    """Starts the tier that was ended, and waits until the engine is attached to it."""
    old = engine.scheduler.session()
    cluster.tiers[node].start()
    until("ready again", lambda: state(cluster, node).get("state") == "ready")
    for half in (engine.scheduler, engine.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]


def test_a_killed_tier_serves_its_pages_again_to_its_engine_and_to_other_nodes(cluster: Cluster) -> None:
    keys = make_keys(20)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    sealed(cluster, 20)
    cluster.tiers["a"].kill()
    again(cluster, p)
    found = state(cluster)
    assert (found["counts"]["adopted"], found["counts"].get("refused_entries", 0)) == (20, 0)
    assert found["unverified"] == 20, "nothing is believed before its checksum was taken"
    mine = p.lookup(keys[:8])
    assert (mine.full, mine.code) == (8, "")
    assert p.load(mine) == [page_bytes(key) for key in keys[:8]]
    theirs = d.lookup(keys, expected=True)
    assert (theirs.full, theirs.code) == (20, "")
    assert d.load(theirs) == [page_bytes(key) for key in keys]
    assert state(cluster)["unverified"] == 0
    assert not p.save(keys).positions, "all of it is there"
    p.close()
    d.close()


def test_a_slot_is_out_of_use_while_a_rank_of_the_old_life_may_write_it(single: Cluster) -> None:
    """The rank stands in the middle of its copy, so it does not attach again; it writes on into its old mapping."""
    keys = make_keys(4)
    p = Engine(single, "a", "p").attached()
    p.save(keys[:2])
    sealed(single, 2)
    ref = p.intent(keys[2:])
    grant = p.rank.take_grant(ref, clock.now() + 10)
    assert grant is not None
    view = p.rank.begin_copy(ref.session)
    assert view is not None
    single.tiers["a"].kill()
    single.tiers["a"].start()
    until("ready again", lambda: state(single).get("state") == "ready")
    found = state(single)
    assert (found["adoption"]["held_slots"], found["adoption"]["waiting_for"]) == (2, 1)
    other = Engine(single, "a", "other").attached()
    full = make_keys(400, salt=1)  # more than there is: every slot that may be granted is granted
    taken = other.save(full)
    assert taken.positions and not set(taken.slots) & set(grant.slots)
    for position, slot in zip(grant.positions, grant.slots, strict=True):
        view.memory[slot * GRANULE : slot * GRANULE + PAGE_BYTES] = b"x" * PAGE_BYTES
        assert position < 2
    there = other.lookup([full[position] for position in taken.positions])
    assert there.full == len(taken.positions)
    assert other.load(there) == [page_bytes(full[position]) for position in taken.positions], "nobody wrote over them"
    assert state(single)["adoption"]["held_slots"] == 2
    del view
    p.rank.end_copy()
    until("the old slots are free", lambda: state(single)["adoption"]["held_slots"] == 0)
    p.close()
    other.close()


def test_slots_of_a_rank_that_died_with_its_tier_are_free_at_once(single: Cluster) -> None:
    child = os.fork()
    if child == 0:
        p = Engine(single, "a", "p").attached()
        p.intent(make_keys(3))
        signal.pause()
    until("the grant", lambda: state(single).get("grants") == 1)
    single.tiers["a"].kill()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    single.tiers["a"].start()
    until("ready again", lambda: state(single).get("state") == "ready")
    found = state(single)
    assert found["adoption"]["held_slots"] == 0 and found["free_bytes"] == found["backed_bytes"]


def test_a_rank_that_dies_later_frees_its_old_slots(single: Cluster) -> None:
    child = os.fork()
    if child == 0:
        p = Engine(single, "a", "p").attached()
        ref = p.intent(make_keys(3))
        assert p.rank.take_grant(ref, clock.now() + 10)
        assert p.rank.begin_copy(ref.session)  # from here on it does not attach again
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    single.tiers["a"].kill()
    single.tiers["a"].start()
    until("ready again", lambda: state(single).get("state") == "ready")
    assert state(single)["adoption"]["held_slots"] == 3
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until("free", lambda: state(single)["adoption"]["held_slots"] == 0)
    found = state(single)
    assert found["free_bytes"] == found["backed_bytes"]


def test_a_stopped_tier_leaves_its_pages_too(single: Cluster) -> None:
    keys = make_keys(5)
    p = Engine(single, "a", "p").attached()
    p.save(keys)
    sealed(single, 5)
    assert single.tiers["a"].stop() == 0
    assert len(single.pool_files("a")) == 2
    again(single, p)
    assert p.load(p.lookup(keys)) == [page_bytes(key) for key in keys]
    p.close()


def test_bytes_that_changed_while_no_tier_looked_are_found_at_the_first_use(single: Cluster) -> None:
    keys = make_keys(6)
    p = Engine(single, "a", "p").attached()
    grant = p.save(keys)
    sealed(single, 6)
    single.tiers["a"].kill()
    pool, _ = single.pool_files("a")
    with pool.open("r+b") as file:
        file.seek(grant.slots[3] * GRANULE + 100)
        file.write(b"rot")
    again(single, p)
    answer = p.lookup(keys)
    assert answer.full == 3
    assert p.load(answer) == [page_bytes(key) for key in keys[:3]]
    found = state(single)
    assert (found["counts"]["adopted"], found["counts"]["adopted_bad"]) == (6, 1)
    assert list(p.save(keys).positions) == [3], "it may be saved again"
    p.close()


def header(offset: int) -> Callable[[Path, Path], None]:
    def spoil(pool: Path, table: Path) -> None:
        with table.open("r+b") as file:
            file.seek(offset)
            old = file.read(1)
            file.seek(offset)
            file.write(bytes((old[0] ^ 1,)))

    return spoil


def shorter(pool: Path, table: Path) -> None:
    os.truncate(pool, pool.stat().st_size - GRANULE)


def lost(pool: Path, table: Path) -> None:
    pool.unlink()


def hole(pool: Path, table: Path) -> None:
    """Another file of the same name and size, without memory."""
    size = pool.stat().st_size
    pool.unlink()
    with pool.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (header(0), "torn_header"),
        (header(33), "torn_header"),
        (header(HEADER_BYTES - 16), "torn_header"),
        (shorter, "other_size"),
        (lost, "pool_missing"),
        (hole, "other_pool"),
    ],
    ids=["magic", "boot id", "life", "shorter", "lost", "another file"],
)
def test_a_table_that_does_not_fit_is_refused_as_a_whole(
    single: Cluster, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path, Path], None], reason: str
) -> None:
    keys = make_keys(3)
    p = Engine(single, "a", "p").attached()
    p.save(keys)
    sealed(single, 3)
    single.tiers["a"].kill()
    spoil(*single.pool_files("a"))
    old = {path.name for path in single.pool_files("a")}
    again(single, p)
    assert not old & {path.name for path in single.pool_files("a")}, "a file of an old life is never used again"
    assert f'"{reason}"' in capfd.readouterr().err
    assert state(single)["pages"] == {}
    assert p.lookup(keys).full == 0
    assert len(p.save(keys).positions) == 3
    p.close()


def test_another_size_or_another_sessions_directory_starts_empty(single: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    keys = make_keys(3)
    p = Engine(single, "a", "p").attached()
    p.save(keys)
    sealed(single, 3)
    single.tiers["a"].kill()
    single.tiers["a"].command[single.tiers["a"].command.index("64MiB")] = "32MiB"
    again(single, p)
    assert state(single)["pages"] == {} and '"other_size"' in capfd.readouterr().err
    p.close()
    single.tiers["a"].kill()
    (single.runtime("a") / "sessions" / ".identity").unlink()
    single.tiers["a"].start()
    until("ready again", lambda: state(single).get("state") == "ready")
    assert '"other_sessions_dir"' in capfd.readouterr().err


def test_without_warm_restart_nothing_is_taken_over_and_nothing_left(single: Cluster) -> None:
    p = Engine(single, "a", "p").attached()
    p.save(make_keys(3))
    sealed(single, 3)
    single.tiers["a"].kill()
    single.tiers["a"].command.append("--no-warm-restart")
    again(single, p)
    assert state(single)["pages"] == {}
    p.close()
    assert single.tiers["a"].stop() == 0
    assert single.pool_files("a") == []


def test_a_torn_entry_costs_its_slot_until_all_old_members_are_quiet(single: Cluster) -> None:
    keys = make_keys(3)
    p = Engine(single, "a", "p").attached()
    grant = p.save(keys)
    sealed(single, 3)
    single.tiers["a"].kill()
    _, table = single.pool_files("a")
    with table.open("r+b") as file:
        file.seek(HEADER_BYTES + 128 * grant.slots[1] + 48)
        file.write(struct.pack("=Q", 0))
    again(single, p)
    found = state(single)
    assert (found["counts"]["adopted"], found["counts"]["refused_entries"]) == (2, 1)
    assert p.lookup(keys).full == 1
    until("free after all old members were quiet", lambda: state(single)["adoption"]["held_slots"] == 0)
    p.close()
