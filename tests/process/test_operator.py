"""A new operator with nothing but the tool and docs: real processes are killed, stopped and misled, each is found by the command
that the documents name. Why a prompt missed, whose seed differs: test_cli_pages.py, test_every_command.py. All of it on a real
deployment: tests/e2e/test_operator_deployment.py.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FACTORS, PAGE_BYTES, Cluster, Engine, dump, make_keys, told, until
from operators import NOBODY, STOPPED, Operator, stopped

pytestmark = pytest.mark.timeout(120)

OTHER = b"o" * 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with Cluster(folder, pool="16MiB") as made:
        made.wait_ready()
        yield made


@pytest.fixture
def ask(cluster: Cluster) -> Operator:
    return Operator({"PEGAFLOW_CLI_METASERVER": cluster.metaserver_endpoint, "PEGAFLOW_CLI_TIMEOUT": "5s"})


def well(cluster: Cluster, ask: Operator) -> None:
    cluster.wait_ready()

    def states() -> dict[str, str]:
        return {one["node"]: one["state"] for one in dump(cluster.metaserver_endpoint).get("nodes", ())}

    until("all up", lambda: states() == dict.fromkeys(cluster.tiers, "up"))
    assert ask("status").code == 0


def test_which_tier_was_killed_and_which_was_stopped(cluster: Cluster, ask: Operator) -> None:
    """While the metaserver still knows them, and when it has given them up."""
    a, b = cluster.tiers["a"], cluster.tiers["b"]
    with stopped(a.process.pid):
        b.kill()
        for _ in range(2):
            answer = ask("status")
            assert answer.code == 1
            assert STOPPED in answer.about("a") and NOBODY in answer.about("b"), answer.talk
            assert {row["node"]: row["reachable"] for row in answer.rows} == {"metaserver": True, "a": False, "b": False}
            until("given up", lambda: dump(cluster.metaserver_endpoint).get("nodes") == [])
        assert {row["node"]: row["state"] for row in answer.rows if row["service"] == "tier"} == {"a": "dead", "b": "dead"}
        assert [row["state"] for row in ask("nodes").rows] == ["dead", "dead"]
    b.start()
    well(cluster, ask)


def test_what_became_of_the_metaserver(cluster: Cluster, ask: Operator) -> None:
    with stopped(cluster.metaserver.process.pid):
        answer = ask("status")
        assert answer.code == 1 and [STOPPED in one["text"] for one in answer.wrong] == [True]
    cluster.metaserver.kill()
    answer = ask("status")
    assert answer.code == 1 and [(one["service"], NOBODY in one["text"]) for one in answer.wrong] == [("metaserver", True)]
    alone = ask(f"status --tier {cluster.endpoint('a')}")
    assert alone.code == 0 and [row["node"] for row in alone.rows] == ["a"], "the tiers can be looked at without it"
    cluster.metaserver.start()
    well(cluster, ask)


def test_a_mover_that_was_stopped(cluster: Cluster, ask: Operator) -> None:
    """Its READs are given up; after a while the tier itself sees it, and starts another."""
    pid = cluster.tiers["b"].process.pid
    (mover,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def counts() -> dict[str, Any]:
        rows = until("rows", lambda: ask("node show b").rows)
        return {row["name"]: row["value"] for row in rows if row["name"].startswith("mover.")}

    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    keys = make_keys(5)
    p.save(keys)
    until("sealed", lambda: told(cluster.endpoint("a"))["pages"].get("sealed") == 5)
    before = counts()
    assert (before["mover.hung"], before["mover.given_up"]) == (0, 0)
    os.kill(int(mover), signal.SIGSTOP)
    assert d.lookup(keys, wait_s=0.5, request="stuck").full == 0
    (row,) = ask("why stuck").rows
    assert row["reason"] == "deadline" and "not there in time" in row["because"] and "on a" in row["because"]
    # A ping every ten seconds goes unanswered, or its READ is not over ten seconds after it was given up: whichever is first.
    until("given up", lambda: (now := counts())["mover.given_up"] or now["mover.spawned"] > before["mover.spawned"])
    until("another one", lambda: counts()["mover.spawned"] == before["mover.spawned"] + 1)
    assert counts()["mover.hung"] <= 1
    until("served again", lambda: d.lookup(keys, request="again").full == 5)
    p.close()
    d.close()


PROMISES = """
import sys, time
from engine_process import Engine, keys_of
engine = Engine("p", sys.argv[1], __import__("pathlib").Path(sys.argv[2]))
engine.scheduler.wait_attached(30), engine.bus.wait_attached(30)
while engine.scheduler.publish_intent(keys_of("slow", 3), [16] * 3, [0] * 3, ["slow"] * 3, 0) is None:
    time.sleep(0.01)
time.sleep(600)
"""


def test_an_engine_that_promised_pages_and_stands_still(cluster: Cluster, ask: Operator) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", PROMISES, cluster.endpoint("a"), str(cluster.runtime("a"))], cwd=Path(__file__).parent
    )
    until("granted", lambda: dump(cluster.endpoint("a")).get("grants") == 1)
    (row,) = ask("intents").rows
    assert (row["engine"], row["requests"], row["pages"]) == ("p", "slow", 3)
    engine.send_signal(signal.SIGSTOP)
    until("silent", lambda: [(row["engine"], row["state"]) for row in ask("sessions").rows] == [("p", "silent")])
    assert ask("sessions").code == 1
    assert ask("intents").rows[0]["silent_ms"] > 1500
    engine.kill()
    engine.wait()
    until("its death is proven", lambda: ask("intents").rows == [])
    assert ask("sessions").code == 0


def test_what_fills_the_pool(cluster: Cluster, ask: Operator, caplog: pytest.LogCaptureFixture) -> None:
    """By engine while it is there, by fingerprint and model afterwards; and what may not be evicted."""
    p = Engine(cluster, "a", "p").attached()
    q = Engine(cluster, "a", "q", fingerprint=OTHER, factors={**FACTORS, "model": "large"}).attached()
    before = told(cluster.endpoint("a"))["pages"].get("sealed", 0)
    mine, theirs = make_keys(10, salt=9), [OTHER + bytes((9, i)) + b"k" * 30 for i in range(200)]
    p.save(mine)
    q.save(theirs)
    until("sealed", lambda: told(cluster.endpoint("a"))["pages"].get("sealed") == before + 210)
    used = {row["engine"]: row["namespace_bytes"] for row in ask("sessions").rows}
    assert used["q"] == 200 * PAGE_BYTES > used["p"]
    held = p.lookup(mine, request="held")
    assert held.lease is not None
    p.scheduler.loading(held.lease)  # so that it lasts, however slow the machine is
    assert [(row["holder"], row["request"], row["pages"]) for row in ask("leases").rows] == [("p", "held", 10)]
    p.scheduler.release(held.lease)
    with caplog.at_level(logging.WARNING):
        twin = Engine(cluster, "a", "q", fingerprint=OTHER)
        until("it says why it is not let in", lambda: "session_taken" in caplog.text)
    twin.close()
    assert len(re.findall("asking again: session_taken", caplog.text)) <= 2, "once by each of its halves"
    q.close()
    until("it has left", lambda: len(told(cluster.endpoint("a"))["sessions"]) == 1)
    talk = ask("sessions").talk
    assert re.search(rf"{OTHER.hex()[:8]} \(no engine now\) still holds 200 pages, .*: model large", talk), talk
    p.close()
