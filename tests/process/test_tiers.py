"""Two real tiers with real movers and a real metaserver: save at one, load at the other; and what the death of each costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import FINGERPRINT, Cluster, Engine, ask, dump, make_keys, page_bytes, told, until
from pegaflow.common import clock
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import SessionList, Sessions

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with Cluster(folder) as made:
        made.wait_ready()
        yield made


def nothing_held(cluster: Cluster, node: str) -> bool:
    found = dump(cluster.endpoint(node))
    names = ("aside", "references", "grants", "hashing", "leases", "pins", "lookups", "waiters", "fetches")
    return bool(found) and not any(found[name] for name in names)


def test_a_page_saved_at_one_node_is_loaded_at_the_other(cluster: Cluster) -> None:
    keys = make_keys(10)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    answer = d.lookup(keys[:-1], [keys[-1]], expected=True)
    assert (answer.full, answer.tail, answer.code) == (9, 0, "")
    assert set(answer.sources) == {1}
    assert d.load(answer) == [page_bytes(key) for key in keys]
    again = d.lookup(keys[:-1], [keys[-1]])
    assert set(again.sources) == {0}
    assert d.load(again) == [page_bytes(key) for key in keys]
    until("nothing held", lambda: nothing_held(cluster, "a") and nothing_held(cluster, "b"))
    assert told(cluster.endpoint("b"))["counts"]["fetched"] == 10
    p.close()
    d.close()


def test_a_lookup_waits_for_a_page_that_is_promised_elsewhere(cluster: Cluster) -> None:
    keys = make_keys(3)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    ref = p.intent(keys)
    until("the promise", lambda: told(cluster.endpoint("a"))["pages"].get("pending") == 3)
    assert d.scheduler.lookup(1, "r", keys, [], 10.0, False)
    until("the question", lambda: told(cluster.endpoint("b"))["lookups"] == 1)
    assert d.scheduler.drain() == []
    p.write(ref, keys)
    answer = until("an answer", d.scheduler.drain)[0]
    assert (answer.full, answer.code) == (3, "")
    assert d.load(answer) == [page_bytes(key) for key in keys]
    p.close()
    d.close()


def test_a_cold_prompt_costs_no_wait(cluster: Cluster) -> None:
    d = Engine(cluster, "b", "d").attached()
    answer = d.lookup(make_keys(4), wait_s=3600.0)  # an hour: if it waited, the test would time out
    assert (answer.full, answer.lease, answer.code) == (0, None, "")
    d.close()


def test_prefixes_are_found_again_after_the_metaserver_died(cluster: Cluster) -> None:
    keys = make_keys(8)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    assert d.load(d.lookup(keys[:4], expected=True)) == [page_bytes(key) for key in keys[:4]]
    cluster.metaserver.kill()
    local = d.lookup(keys[:4])
    assert local.full == 4, "what is here needs no metaserver"
    d.load(local)
    cluster.metaserver.start()
    until("the catalogue is whole", lambda: dump(cluster.metaserver_endpoint) and told(cluster.endpoint("a"))["metaserver_known"])
    answer = d.lookup(keys, expected=True)
    assert (answer.full, answer.code) == (8, "")
    assert d.load(answer) == [page_bytes(key) for key in keys]
    p.close()
    d.close()


def test_a_tier_that_came_back_empty_is_filled_again_and_its_engines_go_on(cluster: Cluster) -> None:
    keys = make_keys(5)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    old = p.scheduler.session()
    cluster.tiers["a"].kill()
    cluster.forget_pool("a")
    cluster.tiers["a"].start()
    for half in (p.scheduler, p.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]
    grant = p.save(keys)
    assert len(grant.positions) == 5, "an empty tier grants everything again"
    answer = d.lookup(keys, expected=True, wait_s=20.0)
    assert (answer.full, answer.code) == (5, "")
    assert d.load(answer) == [page_bytes(key) for key in keys]
    p.close()
    d.close()


def test_an_engine_killed_while_it_may_write_leaves_nothing(cluster: Cluster) -> None:
    keys = make_keys(6)
    child = os.fork()
    if child == 0:
        p = Engine(cluster, "a", "p").attached()
        p.intent(keys)
        signal.pause()
    until("the grant", lambda: told(cluster.endpoint("a"))["grants"] == 1)
    d = Engine(cluster, "b", "d").attached()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until("nothing held", lambda: nothing_held(cluster, "a"))
    found = dump(cluster.endpoint("a"))
    assert found["pages"] == {} and found["sessions"] == [] and found["free_bytes"] == found["backed_bytes"]
    assert not list((cluster.runtime("a") / "sessions").glob("[0-9a-f]*")), "its lock file is gone"
    assert d.lookup(keys).full == 0
    d.close()


def test_a_stopped_owner_costs_a_miss_and_no_slot(cluster: Cluster) -> None:
    keys = make_keys(4)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    until("sealed and located", lambda: told(cluster.endpoint("a"))["pages"].get("sealed") == 4)
    cluster.tiers["a"].process.send_signal(signal.SIGSTOP)
    answer = d.lookup(keys, wait_s=3.0)
    assert answer.full == 0
    until("nothing held", lambda: nothing_held(cluster, "b"))
    cluster.tiers["a"].process.send_signal(signal.SIGCONT)

    def found_again() -> bool:
        late = d.lookup(keys, wait_s=3.0)
        if late.full != 4:
            return False
        assert d.load(late) == [page_bytes(key) for key in keys]
        return True

    until("served again", found_again)
    p.close()
    d.close()


def test_an_engine_with_a_lookup_under_way_attaches_again_after_its_tier_died(cluster: Cluster) -> None:
    d = Engine(cluster, "b", "d").attached()
    old = d.scheduler.session()
    cluster.tiers["b"].kill()
    assert d.scheduler.lookup(1, "r", make_keys(2), [], 5.0, True)
    until("it asks who is there", lambda: d.scheduler._silence.asking)
    cluster.tiers["b"].start()
    for half in (d.scheduler, d.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]
    assert [answer.full for answer in until("its answer", d.scheduler.drain)] == [0]
    assert d.save(make_keys(2)).positions
    d.close()


def test_what_was_promised_in_the_life_before_is_void(cluster: Cluster) -> None:
    keys, granted = make_keys(3), make_keys(2, salt=1)
    d = Engine(cluster, "b", "d").attached()
    d.save(keys)
    lease = until("a lease", lambda: d.lookup(keys).lease)
    ref = d.intent(granted)
    grant = d.rank.take_grant(ref, clock.now() + 10)
    assert grant is not None
    cluster.tiers["b"].kill()
    cluster.tiers["b"].start()
    for half in (d.scheduler, d.rank):
        until("attached again", lambda half=half: half.session() not in (None, ref.session))  # type: ignore[misc]
    assert d.rank.begin_copy(ref.session) is None, "nothing is written under a grant of the life before"
    d.rank.written(grant, list(grant.positions))
    d.scheduler.loading(lease)
    d.scheduler.release(lease)
    again = d.save(granted)
    assert list(again.positions) == [0, 1], "the new life has nothing of what was only granted"
    until("nothing held", lambda: nothing_held(cluster, "b"))
    assert told(cluster.endpoint("b"))["counts"].get("stale_words", 0) == 0, "an old word was not even sent"
    answer = d.lookup(granted)
    assert d.load(answer) == [page_bytes(key) for key in granted]
    d.close()


def test_routers_are_told_how_engines_name_pages(cluster: Cluster) -> None:
    p = Engine(cluster, "a", "p").attached()
    listed = ask(cluster.endpoint("a"), Sessions())
    assert listed == SessionList(["p"], FINGERPRINT, u32s([32]), u32s([16]), ["sha256_cbor"], ["0f" * 32])
    p.close()
    until("it has left", lambda: not ask(cluster.endpoint("a"), Sessions()).engines)
