"""A new operator on the deployment that scripts/demo starts: real vLLMs, tiers and router under supervisord are killed, stopped
and misled; one or two commands that `pegaflow --help` and the documents name say what it is. Services alone:
tests/process/test_operator.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from operators import NOBODY, STOPPED, Answer, Operator, stopped

from deployment import metrics
from deployment.http import Json, Server
from deployment.leftovers import held
from deployment.readiness import wait_all, wait_until
from deployment.supervision import SERVICES, WATCH

from .conftest import Deployment
from .gate.engine import Engine, transfer_in
from .gate.served import EngineSpec

pytestmark = pytest.mark.timeout(1500)  # the first test may start the deployment; a vLLM that was killed takes a minute

SEED = "7"
PATIENCE_S = 60.0


@pytest.fixture
def ask(deployment: Deployment) -> Operator:
    """In the environment that scripts/demo --keep prints, with the patience that a busy machine needs."""
    return Operator({**deployment.plan.operator(), "PEGAFLOW_CLI_TIMEOUT": "3s"})


@pytest.fixture(autouse=True)
def whole_again(deployment: Deployment, ask: Operator) -> Iterator[None]:
    """Each test leaves the deployment as it found it, and the tool says so."""
    yield
    wait_all(deployment.supervision, SERVICES, deployment.plan.ports)
    wait_until("the tool finds everybody well", lambda: well(ask), PATIENCE_S)
    wait_until("nothing is held any more", lambda: not held(deployment.plan.ports), 15)
    expected = deployment.references.plain[3]
    answer = deployment.router.post(expected.case.path, expected.case.body)
    assert tuple(answer["choices"][0]["token_ids"]) == expected.answer.ids


def well(ask: Operator) -> bool:
    """Everybody answers, both engines are attached, and the router finds its engines healthy."""
    status, sessions = ask("status"), ask("sessions")
    services = sorted((row["service"], row["reachable"]) for row in status.rows)
    attached = sorted((row["node"], row["state"]) for row in sessions.rows)
    return (
        status.code == sessions.code == 0
        and services == [(name, True) for name in ("metaserver", "router", "tier", "tier")]
        and attached == [("a", "attached"), ("b", "attached")]
    )


def prompt(deployment: Deployment, topic: str, folder: Path) -> tuple[list[int], Path]:
    """Ids of two pages and a tail that nobody has seen, and a file of them."""
    ids: list[int] = deployment.prompts.completion(topic, 70).body["prompt"]
    path = folder / f"{topic}.json"
    path.write_text(json.dumps(ids))
    return ids, path


def complete(deployment: Deployment, ids: list[int]) -> Json:
    """Through the router, as a client."""
    case = deployment.prompts.exact("", ids, max_tokens=4)
    return deployment.router.post(case.path, case.body)


def causes(answer: Answer) -> dict[str | None, str]:
    """By whose tier was asked; None: all of them, by a prompt's tokens."""
    return {row["node"]: row["cause"] for row in answer.rows}


def engines(ask: Operator) -> dict[str, str]:
    """Their names by node; vLLM draws them. P is on a, D on b."""
    return {row["node"]: row["engine"] for row in ask("sessions").rows}


def test_services_killed_and_stopped(deployment: Deployment, ask: Operator) -> None:
    """supervisord stands still while one looks: within a second it would have started them again."""
    supervisord = int((deployment.plan.run / "supervisord.pid").read_text())
    pids = {name: deployment.supervision.process(name).pid for name in ("metaserver", "tier-a", "tier-b", "router")}
    with stopped(supervisord), stopped(pids["tier-a"]):
        os.kill(pids["tier-b"], signal.SIGKILL)
        os.kill(pids["router"], signal.SIGKILL)
        answer = ask("status")
        assert answer.code == 1
        assert STOPPED in answer.about("a") and NOBODY in answer.about("b"), answer.talk
        assert [(one["service"], NOBODY in one["text"]) for one in answer.wrong if one["node"] not in "ab"] == [("router", True)]
    wait_until("all are back", lambda: well(ask), PATIENCE_S)
    assert ask("status").row("b")["last_life"]["reason"] in ("dead", "replaced"), "it can be seen afterwards, too"
    with stopped(supervisord):
        os.kill(pids["metaserver"], signal.SIGKILL)
        answer = ask("status")
        assert answer.code == 1 and [(one["service"], NOBODY in one["text"]) for one in answer.wrong] == [("metaserver", True)]


def test_why_a_prompt_missed(deployment: Deployment, ask: Operator, tmp_path: Path) -> None:
    """One that nobody has ever asked for, and one that the tiers had to evict; by the id that a client got, or by its tokens."""
    _, cold = prompt(deployment, "meadow", tmp_path)
    assert set(causes(ask(f"why --tokens {cold}")).values()) == {"never_saved"}
    seen: list[tuple[Path, Answer]] = []

    def went_its_way() -> bool:
        """A grant that comes too late costs a page; then it is another prompt's turn."""
        ids, file = prompt(deployment, f"orchard-{len(seen)}", tmp_path)
        seen.append((file, ask(f"why {complete(deployment, ids)['id']}")))
        return causes(seen[-1][1]) == {"a": "never_saved", "b": "there"}

    wait_until("a prompt goes its way from P to D", went_its_way, PATIENCE_S)
    file, answer = seen[-1]
    assert "then this request saved it itself" in answer.row("a")["because"]
    wait_until("all of it is saved", lambda: set(causes(ask(f"why --tokens {file}")).values()) == {"there"}, PATIENCE_S)
    config, tiers = deployment.plan.config, [deployment.supervision.process(name).pid for name in ("tier-a", "tier-b")]
    before = config.read_text()
    try:
        config.write_text(before.replace("[tier]\n", "[tier]\nevict_high = 0.001\nevict_low = 0.0005\n"))
        for one in tiers:
            os.kill(one, signal.SIGHUP)
        wait_until("it is gone", lambda: set(causes(ask(f"why --tokens {file}")).values()) == {"evicted"}, 30)
        answer = ask(f"why --tokens {file}")
        assert all("watermark" in row["because"] for row in answer.rows), answer.rows
    finally:
        config.write_text(before)
        for one in tiers:
            os.kill(one, signal.SIGHUP)

    def changed() -> list[str]:
        return [row["name"] for row in ask("config show --running --changed").rows if row["service"] == "tier"]

    wait_until("it is as before", lambda: "pool_size" in (names := changed()) and "evict_high" not in names, PATIENCE_S)


def saved_by_odd(odd: Engine, ids: list[int], ask: Operator) -> bool:
    """Whether its two pages are at the tier; else they are offered again: their grant may have come too late."""
    if {row["engine"]: row["namespace_pages"] for row in ask("sessions").rows}["odd"] == 2:
        return True
    odd.generate([ids], 4)
    odd.idle()
    return False


def test_an_engine_with_another_hash_seed(deployment: Deployment, ask: Operator, tmp_path: Path) -> None:
    """Which one it is, that its prompts miss for that reason, and what its pages take of the pool, also when it has left."""
    ids, _ = prompt(deployment, "harvest", tmp_path)
    complete(deployment, ids)
    named = engines(ask)
    p, d = named["a"], named["b"]
    args = {"block_size": 32, "max_model_len": 2048, "kv_cache_memory_bytes": 256 << 20}
    transfer = {**transfer_in(deployment.plan.runtime / "a"), "engine_id": "odd"}
    with Engine(EngineSpec(deployment.plan.model, args, transfer, {"PYTHONHASHSEED": SEED}), tmp_path / "odd.log") as odd:
        odd.generate([ids], 4)
        odd.idle()
        (found,) = (row for row in ask("doctor").rows if row["code"].endswith("_differs"))
        assert (found["code"], found["where"]) == ("hash_seed_differs", "engine odd on a")
        assert "none_hash" in found["what"] and "PYTHONHASHSEED" in found["todo"]
        wait_until("both pages are saved", lambda: saved_by_odd(odd, ids, ask), PATIENCE_S)
        sessions = ask("sessions")
        differing = rf"\({p} on a, {d} on b\) and \w+ \(odd on a\) differ: none_hash \(here \w+…, there \w+…\)"
        assert re.search(differing, sessions.talk), sessions.talk
        pages = {row["engine"]: row["namespace_pages"] for row in sessions.rows}
        assert pages[p] == pages[d] > pages["odd"] == 2
        row, *_ = ask("why r1").rows  # the latest
        assert (row["engine"], row["hits"], row["cause"]) == ("odd", 0, "other_fingerprint")
        assert "none_hash" in row["because"] and f"{p} on a" in row["because"]
    left = r"fingerprint \w+ \(no engine now\) still holds 2 pages, \S+B: model "
    wait_until("it has left", lambda: re.search(left, ask("sessions").talk) is not None, PATIENCE_S)


def test_engines_killed_and_stopped(deployment: Deployment, ask: Operator) -> None:
    """Who it is, by the tier's word and the router's. And supervisord with its watch starts both again, each once."""
    supervision, ports = deployment.supervision, deployment.plan.ports
    pids = {name: supervision.process(name).pid for name in ("vllm-p", "vllm-d")}
    named = engines(ask)
    p, d = named["a"], named["b"]
    members = {(row["engine"], one["role"]): one["pid"] for row in ask("sessions").rows for one in row["members"]}
    core, worker = members[d, "scheduler"], members[p, "rank"]
    with stopped(core):  # its API server answers: only the tier can know
        wait_until("it is missed", lambda: ask("sessions").about(d) != "", 30)
        for command in ("sessions", "status"):
            answer = ask(command)
            assert answer.code == 1, answer.talk
            assert "is stopped, hangs" in answer.about(d) and str(core) in answer.about(d)

    def looks(program: str, result: str) -> float:
        return metrics.take(Server(ports.watch_health)).total("pegaflow_watch_checks_total", program=program, result=result)

    supervision.start_one(WATCH)
    try:
        wait_until("the watch listens", lambda: Server(ports.watch_health).status("/health")[0] == 200, PATIENCE_S)
        wait_until("it has seen both", lambda: all(looks(name, "alive") > 0 for name in pids), PATIENCE_S)
        os.killpg(pids["vllm-d"], signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)  # as the kernel does where memory is short; the rest of the engine ends by itself, with 0
        wait_until("the router has noticed", lambda: ask("status").about("prefill") != "", PATIENCE_S)
        wait_until("its tier, too", lambda: p not in engines(ask).values(), PATIENCE_S)
        wait_until(
            "both are others", lambda: all(supervision.process(name).pid not in (0, pid) for name, pid in pids.items()), 90
        )
        wait_all(supervision, SERVICES, ports)
        seen = looks("vllm-d", "alive")
        wait_until("the watch has seen it again", lambda: looks("vllm-d", "alive") > seen, PATIENCE_S)
    finally:
        supervision.stop_one(WATCH)
    told = [json.loads(line) for line in supervision.log(WATCH).read_text().splitlines()]
    restarts = [line["program"] for line in told if line["event"].startswith("restart")]
    assert "vllm-d" in restarts and len(restarts) == len(set(restarts)), "a start takes its time, which is no reason for another"
