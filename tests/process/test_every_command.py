"""Every command of the tool × every output × (healthy, a tier stopped, the metaserver dead): exit code, clean output, no trace.

Nobody lets us in: test_every_command_barred.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_table
import pytest
from cluster import FACTORS, Cluster, Engine, ask, dump, make_keys, told, until
from command_table import LEAVES, TABLE, Place, Row, complaints, name_of
from pegaflow.common import clock
from pegaflow.common.bus.keyring import new_pair
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.private import write_secret
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.facts import DiskSpeed, Facts, Reach, Reached
from pegaflow.common.wire.messages.operate import Document, Ping, Pong
from pegaflow.services.cli.__main__ import main
from pegaflow.services.cli.doctor.surroundings import MIN_FILES

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    config = folder / "c.toml"
    config.write_text("[tier]\n")
    disk = ("--disk-dir", str(folder / "disk"), "--disk-size", "64MiB", "--evict-high", "0.9", "--evict-low", "0.8")
    with Cluster(folder, mover=False, more=("--config", str(config)), own={"b": disk}, router=True) as made:
        made.wait_ready()
        engine = Engine(made, "a", "e").attached()
        engine.save(make_keys(4))
        until("sealed", lambda: told(made.endpoint("a"))["pages"].get("sealed") == 4)
        engine.load(engine.lookup(make_keys(5), request="r"))
        yield made
        engine.close()


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str, float]:
    begun = time.monotonic()
    try:
        code = main(shlex.split(line))
    except SystemExit as end:
        code = int(end.code or 0)
    took = time.monotonic() - begun
    out, error = capsys.readouterr()
    return code, out, error, took


def complained(cluster: Cluster, column: str, timeout: str) -> list[str]:
    """Every command in every output; `timeout` for those that shall not end well, the others may take their time."""
    codes = {row: int(getattr(row, column)) for row in TABLE}
    if column == "healthy" and resource.getrlimit(resource.RLIMIT_NOFILE)[0] < MIN_FILES:
        codes |= {row: 1 for row in TABLE if row.line == "doctor"}

    def patience(row: Row) -> str:
        return timeout if codes[row] else "2s" if row.words[0] == "monitor" else "20s"  # which waits for all before it listens

    return complaints(command_table.run(TABLE, place(cluster), values(cluster), patience), codes)


def place(cluster: Cluster) -> Place:
    b = f"--tier {cluster.endpoint('b')}"
    everybody = f"--metaserver {cluster.metaserver_endpoint} --tier {cluster.endpoint('a')} {b}"
    return Place(everybody, b, f"--router {cluster.router_endpoint}")


def values(cluster: Cluster) -> dict[str, str]:
    """What stands for the names in a line of the table."""
    tokens, secret = cluster.folder / "tokens", cluster.folder / "secret"
    if not tokens.exists():
        tokens.write_text(json.dumps(list(range(80))))
        write_secret(secret, new_pair()[1])
    return {"key": make_keys(1)[0].hex(), "tokens": str(tokens), "secret": str(secret), "folder": str(cluster.folder)}


def doctor(cluster: Cluster, timeout: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Exit code, and what to do by what was found."""
    where = f"--metaserver {cluster.metaserver_endpoint} --tier {cluster.endpoint('a')} --tier {cluster.endpoint('b')}"
    code, out, _, _ = run(f"doctor -o json {where} --timeout {timeout}", capsys)
    found: dict[str, str] = {}
    for row in json.loads(out)["rows"]:
        found[row["code"]] = found.get(row["code"], "") + row["todo"] + "\n"
    return code, found


def test_the_table_has_every_command() -> None:
    assert {name_of(row) for row in TABLE} == set(LEAVES)


def test_healthy(cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = complained(cluster, "healthy", "20s")
    assert not found, "\n".join(found)
    code, codes = doctor(cluster, "20s", capsys)
    assert codes.keys() <= {"few_files"}, "which depends on the shell that runs this"
    assert code == bool(codes)
    file = tmp_path / "dump.json"
    line = f"dump -o {file} --metaserver {cluster.metaserver_endpoint} --timeout 20s"
    assert run(line, capsys)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    told = json.loads(file.read_text())
    assert sorted(one["node"] for one in told["services"]) == ["a", "b", "metaserver"] and told["wrong"] == []
    assert all({"status", "dump", "facts"} <= one.keys() for one in told["services"])
    code, _, error, _ = run(line, capsys)
    assert code == 1 and "not_written" in error, "nothing is overwritten"


def options(cluster: Cluster, node: str) -> dict[str, Any]:
    told = json.loads(ask(cluster.endpoint(node), Facts()).json)
    return {one["name"]: one["value"] for one in told["options"]}


def test_a_tier_reads_its_configuration_again(cluster: Cluster) -> None:
    file, process = cluster.folder / "c.toml", cluster.tiers["a"].process
    assert (options(cluster, "a")["scrub_rate"], options(cluster, "a")["quota_default"]) == (32 << 20, 1.0)
    file.write_text('[tier]\nscrub_rate = 0\nquota_default = 0.5\npool_size = "1GiB"\ndisk_queue = "1MiB"\n')
    process.send_signal(signal.SIGHUP)
    until("the new value", lambda: options(cluster, "a")["scrub_rate"] == 0)
    namespaces = told(cluster.endpoint("a"))["space"]["namespaces"]
    assert [space["quota_bytes"] for space in namespaces.values()] == [32 << 20], "in use, not only shown"
    assert options(cluster, "a")["disk_queue"] == 256 << 20, "that one needs a restart"
    file.write_text("[tier]\nscrub_rate = 1\nevict_low = 2\n")
    process.send_signal(signal.SIGHUP)
    file_again = "[tier]\nscrub_rate = 2\n"
    until("it was refused, or taken", lambda: dump(cluster.endpoint("a")))
    assert options(cluster, "a")["scrub_rate"] == 0, "a file that is wrong anywhere changes nothing"
    file.write_text(file_again)
    process.send_signal(signal.SIGHUP)
    until("a good one", lambda: options(cluster, "a")["scrub_rate"] == 2)
    assert options(cluster, "a")["quota_default"] == 1.0
    cluster.metaserver.process.send_signal(signal.SIGHUP)
    assert ask(cluster.metaserver_endpoint, Ping()).service == "metaserver", "it lives"


def test_disks_are_measured_where_there_are_some(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"doctor --disk -o json --metaserver {cluster.metaserver_endpoint} --timeout 20s"
    code, out, error, _ = run(line, capsys)
    codes = {row["code"] for row in json.loads(out)["rows"]}
    assert codes <= {"few_files", "slow_disk"} and code == bool(codes)
    assert "tier b: disk write " in error and "tier a: disk" not in error
    assert sorted(path.name for path in cluster.disk("b").iterdir() if "speed" in path.name) == []
    control = told(cluster.endpoint("a"))["control"]
    with pytest.raises(RemoteError, match="unsupported"):
        ask(control, DiskSpeed(1))
    with pytest.raises(RemoteError, match="unsupported"):
        ask(cluster.endpoint("a"), DiskSpeed(1))  # what makes a service do something is for its control


def test_an_engine_with_another_hash_seed_is_found(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    factors = {**FACTORS, "none_hash": "1e" * 32}
    engine = Engine(cluster, "b", "other", fingerprint=b"g" * 16, factors=factors).attached()
    code, codes = doctor(cluster, "20s", capsys)
    where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"
    listed = run(f"fingerprints --differing -o jsonl {where}", capsys)[1]
    engine.close()
    assert code == 1 and "hash_seed_differs" in codes
    assert {json.loads(line)["factor"] for line in listed.splitlines()} == {"fingerprint", "none_hash"}
    until("it has left", lambda: not told(cluster.endpoint("b"))["sessions"])


def test_drained_and_taken_back(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"

    def draining() -> bool:
        rows = json.loads(run(f"nodes -o json {where}", capsys)[1])["rows"]
        return {row["node"]: bool(row["draining"]) for row in rows}["a"]

    assert run(f"node drain a --yes --wait 20s {where}", capsys)[0] == 0
    assert draining()
    assert run(f"node undrain a --yes {where}", capsys)[0] == 0
    assert not draining()


def test_a_control_path_of_another_machine_is_not_taken_for_that_of_a_tier_here(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both nodes have it at the same path, and the operator is on the wrong one of them."""
    epoch = 7

    def elsewhere(request: Request) -> None:
        told = {"control": cluster.control("a"), "state": "ready"}
        pong = Pong("tier", "elsewhere", epoch, "0", 0)
        request.reply(pong if isinstance(request.message, Ping) else Document("tier", "elsewhere", epoch, json.dumps(told)))

    async def scenario() -> tuple[int, str, str]:
        factory = SocketFactory()
        server = RpcServer(factory, asyncio.get_running_loop(), "tcp://127.0.0.1:*", epoch, elsewhere, clock.now)
        try:
            line = f"node drain elsewhere --yes --tier {server.endpoint} --timeout 20s"
            code, out, error, _ = await asyncio.to_thread(run, line, capsys)
            return code, out, error
        finally:
            server.close()
            factory.close()

    code, out, error = asyncio.run(scenario())
    assert (code, out) == (1, "") and "wrong_epoch" in error and "own machine" in error
    assert told(cluster.endpoint("a"))["state"] == "ready"


def test_monitor_shows_only_what_was_asked_for(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A tier that the metaserver names says whose session it is."""
    where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"
    code, out, error, _ = run(f"monitor --filter engine=e --filter kind=session_beat -n 2 --for 20s -o jsonl {where}", capsys)
    shown = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(shown) == 2, error
    (session,) = [one["session"] for one in told(cluster.endpoint("a"))["sessions"]]
    assert {(one["node"], one["kind"], one["topic"]) for one in shown} == {("a", "session_beat", f"s.{session}")}
    code, out, _, _ = run(f"monitor --filter engine=nobody -n 1 --for 1s {where}", capsys)
    assert (code, out) == (1, ""), "what is not shown does not count"


def test_routers_tell_their_options(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"--metaserver {cluster.metaserver_endpoint} --router {cluster.router_endpoint} --timeout 20s"
    code, out, error, _ = run(f"config show --running --service router -o jsonl {where}", capsys)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and {row["service"] for row in rows} == {"router"}, error
    assert next(row["value"] for row in rows if row["name"] == "control") == cluster.router_endpoint


def test_the_doctor_says_what_it_could_not_look_at(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A tier of another machine with a Unix socket for control only, and one whose disk does not come to an end."""

    def elsewhere(name: str, control: str) -> Callable[[Request], None]:
        def answer(request: Request) -> None:
            told = {"endpoints": {"control": control}, "options": [{"name": "disk_dir", "value": "/d"}]}
            match request.message:
                case Ping():
                    request.reply(Pong("tier", name, 7, "0", 0))
                case Reach(endpoints):
                    request.reply(Reached([""] * len(endpoints), u32s([0] * len(endpoints))))
                case DiskSpeed():
                    pass
                case _:
                    request.reply(Document("tier", name, 7, json.dumps(told)))

        return answer

    async def scenario() -> tuple[int, str, str]:
        factory, loop = SocketFactory(), asyncio.get_running_loop()
        slow = f"ipc://{cluster.folder}/slow"
        servers = [
            RpcServer(factory, loop, "tcp://127.0.0.1:*", 7, elsewhere("far", cluster.control("a")), clock.now),
            RpcServer(factory, loop, slow, 7, elsewhere("slow", slow), clock.now),
        ]
        try:
            line = f"doctor --disk -o json --metaserver {cluster.metaserver_endpoint} --timeout 10s"
            code, out, error, _ = await asyncio.to_thread(run, f"{line} --tier {servers[0].endpoint} --tier {slow}", capsys)
            return code, out, error
        finally:
            for server in servers:
                server.close()
            factory.close()

    code, out, error = asyncio.run(scenario())
    rows = [row for row in json.loads(out)["rows"] if row["where"] in ("tier far", "tier slow")]
    found = {(row["code"], row["where"].removeprefix("tier ")): row for row in rows}
    assert code == 1 and found.keys() == {("reach_unknown", "far"), ("disk_unknown", "far"), ("disk_unknown", "slow")}, error
    assert "wrong_epoch" in found["reach_unknown", "far"]["what"] and "tcp" in found["reach_unknown", "far"]["todo"]
    assert "no answer" in found["disk_unknown", "slow"]["what"] and "--timeout" in found["disk_unknown", "slow"]["todo"]


def test_a_tier_is_stopped(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    process = cluster.tiers["b"].process
    process.send_signal(signal.SIGSTOP)
    try:
        found = complained(cluster, "stopped", "200ms")
        assert not found, "\n".join(found)
        code, codes = doctor(cluster, "8s", capsys)
        assert code == 1 and "SIGSTOP" in codes["no_answer"]
        until("it is given up", lambda: [one for one in told(cluster.metaserver_endpoint)["left"] if one["node"] == "b"])
        where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"
        code, out, _, _ = run(f"doctor -o json {where}", capsys)
        assert code == 1 and "node_lost" in {row["code"] for row in json.loads(out)["rows"]}
        assert run(f"check ping {where}", capsys)[0] == 2, "nobody names its endpoint any more, and it is missed all the same"
    finally:
        process.send_signal(signal.SIGCONT)


def test_the_metaserver_is_dead(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    until("b is back", lambda: dump(cluster.endpoint("b")).get("state") == "ready")
    cluster.metaserver.kill()
    found = complained(cluster, "dead", "200ms")
    assert not found, "\n".join(found)
    code, codes = doctor(cluster, "8s", capsys)
    assert code == 1 and "killed" in codes["no_answer"] and codes.keys() <= {"no_answer", "few_files"}
