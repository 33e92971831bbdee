"""Three real tiers with real movers over TCP, one of which reads from the others: what the trouble of one owner costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, Engine, dump, make_keys, page_bytes, told, until
from fault_control import FaultControl, state
from pegaflow.common import faults
from pegaflow.connector.session import LookupAnswer

pytestmark = pytest.mark.timeout(120)
LONG_S = 60.0
"""A wait that nothing of what is tested here takes: what is answered before it was not waited for."""
LOST = "peer_unreachable", "peer_lost", "failed_late"


class Nodes:
    """`a` and `c` own pages, `b` reads them; an engine at each."""

    def __init__(self, cluster: Cluster, control: FaultControl) -> None:
        self.cluster, self.control = cluster, control
        self.engines = {node: Engine(cluster, node, f"engine-{node}").attached() for node in "abc"}
        self._salt = 0
        self._lookups = 1000

    def saved(self, count: int, nodes: str) -> list[bytes]:
        """New pages at each of these nodes, visible to lookups."""
        self._salt += 1
        keys = make_keys(count, self._salt)
        for node in nodes:
            before = told(self.cluster.endpoint(node))["counts"].get("sealed", 0)
            self.engines[node].save(keys)
            until("sealed", lambda: told(self.cluster.endpoint(node))["counts"].get("sealed", 0) == before + count)  # noqa: B023
        return keys

    def asks(self, keys: list[bytes]) -> int:
        """A lookup at b that may wait long for pages that come; returns its number."""
        self._lookups += 1
        assert self.engines["b"].scheduler.lookup(self._lookups, "r", keys, [], LONG_S, True)
        return self._lookups

    def answer(self) -> LookupAnswer:
        """The next answer, whichever lookup's it is."""
        (found,) = until("an answer", self.engines["b"].scheduler.drain)
        return found

    def check(self, answer: LookupAnswer, keys: list[bytes]) -> None:
        """All of it is there, and right."""
        assert (answer.full, answer.code) == (len(keys), "")
        assert self.engines["b"].load(answer) == [page_bytes(key) for key in keys]

    def count(self, name: str) -> int:
        """A counter of b's tier."""
        return int(told(self.cluster.endpoint("b"))["counts"].get(name, 0))

    def ended(self, *outcomes: str) -> int:
        """READs of b's mover that ended so."""
        counts = told(self.cluster.endpoint("b"))["mover"]
        return sum(counts.get(f"ended_{outcome}", 0) for outcome in outcomes)

    def settled(self) -> None:
        """Nothing is left of what was tried, at any node."""
        names = ("aside", "references", "grants", "hashing", "leases", "pins", "lookups", "waiters", "fetches")
        for node in "abc":
            until(f"nothing held at {node}", lambda: (d := dump(self.cluster.endpoint(node))) and not any(map(d.get, names)))  # noqa: B023

    def mover(self, node: str) -> int:
        pid = self.cluster.tiers[node].process.pid
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return child


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    # No scrubber: it would find the page that a test spoils before a reader does.
    with FaultControl(folder) as control, Cluster(folder, "abc", more=["--ucx-tls", "tcp", "--scrub-rate", "0"]) as cluster:
        cluster.wait_ready()
        made = Nodes(cluster, control)
        yield made
        for engine in made.engines.values():
            engine.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stands still in between. Its tier may have replaced it by the end."""
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGSTOP)
        until("it stands still", lambda: state(pid) == "T")
        yield
    finally:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)


@pytest.mark.parametrize(("what", "given_up"), [("mover", False), ("tier", False), ("tier", True)])
def test_a_stopped_owner_delays_no_page_that_another_one_holds(nodes: Nodes, what: str, given_up: bool) -> None:
    mine, others, more = nodes.saved(4, "a"), nodes.saved(3, "c"), nodes.saved(2, "c")
    fetched, failed = nodes.count("fetched"), nodes.count("fetch_failed")
    with stopped(nodes.mover("a") if what == "mover" else nodes.cluster.tiers["a"].process.pid):
        first = nodes.asks([*mine, *others])
        # The pages of c come although those of a, before them in the same lookup, do not.
        until("the pages of c", lambda: nodes.count("fetched") == fetched + 3)
        second = nodes.asks(more)
        answer = nodes.answer()
        assert answer.lookup == second
        nodes.check(answer, more)
        assert nodes.count("fetched") == fetched + 5
        if given_up:
            until("its silence has been noticed", lambda: nodes.count("fetch_failed") > failed)
        assert nodes.engines["b"].scheduler.drain() == []
    # It goes on, and the lookup that waited for it gets everything.
    answer = nodes.answer()
    assert answer.lookup == first
    nodes.check(answer, [*mine, *others])
    nodes.settled()


def test_the_other_owner_is_read_when_the_first_does_not_answer(nodes: Nodes) -> None:
    given_up = nodes.count("reads_given_up")
    with stopped(nodes.mover("a")):
        # Which owner is asked first is the metaserver's choice: in turns, but after one that was silent or busy a moment ago.
        def tried() -> bool:
            keys = nodes.saved(2, "ac")
            nodes.asks(keys)
            nodes.check(nodes.answer(), keys)
            return nodes.count("reads_given_up") > given_up

        until("the one that stands still is asked first", tried)
        assert nodes.count("reads_given_up") == given_up + 1
        # What was given up holds its slots, and its owner gets no new READ as long as it has not ended.
        assert told(nodes.cluster.endpoint("b"))["fetches"] == 1
    nodes.settled()
    assert nodes.count("reads_given_up") == given_up + 1


def test_bytes_that_are_not_what_their_owner_says_are_not_served(nodes: Nodes) -> None:
    alone, twice = nodes.saved(2, "a"), nodes.saved(2, "ac")
    (pool,) = [path for path in nodes.cluster.pool_files("a") if path.stat().st_size == 64 << 20]
    with open(pool, "r+b") as file:
        for key in (alone[1], twice[0]):
            file.seek(0)
            at = file.read().index(page_bytes(key))
            file.seek(at + 5)
            file.write(b"lie")
    bad, free = nodes.count("bad_checksum"), told(nodes.cluster.endpoint("b"))["free_bytes"]
    answer = nodes.engines["b"].lookup(alone)
    assert (answer.full, answer.code) == (1, "bad_checksum")
    assert nodes.engines["b"].load(answer) == [page_bytes(alone[0])]
    assert nodes.count("bad_checksum") == bad + 1
    nodes.asks(twice)
    nodes.check(nodes.answer(), twice)
    nodes.settled()
    assert free - told(nodes.cluster.endpoint("b"))["free_bytes"] == 3 * 3 * (16 << 10), "what was good, and nothing else"


def test_an_owner_that_restarts_between_pin_and_read_is_read_anew(nodes: Nodes) -> None:
    keys = nodes.saved(3, "a")
    fault, tier = "tier.read.before_post:stop", nodes.cluster.tiers["b"].process.pid
    failed, lost = nodes.count("fetch_failed"), nodes.ended(*LOST)
    nodes.control.arm(fault)
    nodes.asks(keys)
    assert until("the pages are pinned", lambda: faults.seen(nodes.control.marks).get(fault)) == tier
    until("b stands still", lambda: state(tier) == "T")
    nodes.control.arm("")
    nodes.cluster.tiers["a"].kill()
    nodes.cluster.tiers["a"].start()
    until("a is back", lambda: dump(nodes.cluster.endpoint("a")).get("state") == "ready")
    os.kill(tier, signal.SIGCONT)
    answer = nodes.answer()
    until("the READ has failed", lambda: nodes.count("fetch_failed") >= failed + 3)
    until("and has ended", lambda: nodes.ended(*LOST) == lost + 1)
    if answer.full < len(keys):  # the engine did not wait for a tier that stood still
        nodes.asks(keys)
        answer = nodes.answer()
    nodes.check(answer, keys)
    nodes.settled()
