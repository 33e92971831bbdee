"""Every command of the tool × every output × (healthy, a tier stopped, the metaserver dead): exit code, clean output, no trace.

In this process, through the tool's main(): a command costs milliseconds so. What it costs as a process, other tests see.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cluster import FACTORS, Cluster, Engine, ask, dump, make_keys, until
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.facts import DiskSpeed, Facts
from pegaflow.common.wire.messages.operate import Ping
from pegaflow.services.cli.__main__ import main

pytestmark = pytest.mark.timeout(300)

LISTS = ("table", "wide", "json", "jsonl")
CHECKS = ("text", "json", "nagios", "prometheus")
HANGS_S = 30.0
"""Far beyond every --timeout here: whoever takes that long hangs."""


class Row(NamedTuple):
    """A command and its exit codes: healthy, tier b stopped, metaserver dead. `outputs`: option and its values."""

    line: str
    healthy: int
    stopped: int
    dead: int
    option: str = "-o"
    outputs: tuple[str, ...] = LISTS


TABLE = (
    Row("status", 0, 1, 1),
    Row("nodes", 0, 1, 1),
    Row("node show a", 0, 1, 1),
    Row("node show nobody", 1, 1, 1),
    Row("ping -n 1", 0, 1, 1),
    Row("bench -n 20", 0, 1, 1),
    Row("top -n 1 --every 100ms", 0, 1, 1),
    Row("fingerprints", 0, 1, 1),
    Row("check ping -w 20s -c 30s", 0, 2, 2, "--format", CHECKS),
    Row("check latency -w 20s -c 30s", 0, 2, 2, "--format", CHECKS),
    Row("check latency -w 1us -c 30s", 1, 2, 2, "--format", CHECKS),
    Row("check sync", 0, 2, 2, "--format", CHECKS),
    Row("check capacity", 0, 3, 3, "--format", CHECKS),
    Row("config show --running --changed", 0, 1, 1),
    Row("send ping --one", 0, 1, 0, "", ("",)),
    Row("node drain nobody --yes", 1, 1, 1, "", ("",)),
    Row("node undrain a", 2, 2, 2, "", ("",)),
)
"""`--one`: at tier b only."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    config = folder / "c.toml"
    config.write_text("[tier]\n")
    disk = ("--disk-dir", str(folder / "disk"), "--disk-size", "64MiB", "--evict-high", "0.9", "--evict-low", "0.8")
    with Cluster(folder, mover=False, more=("--config", str(config)), own={"b": disk}) as made:
        made.wait_ready()
        engine = Engine(made, "a", "e").attached()
        engine.save(make_keys(4))
        until("sealed", lambda: dump(made.endpoint("a"))["pages"].get("sealed") == 4)
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


def complaints(cluster: Cluster, column: str, timeout: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    everybody = f"--metaserver {cluster.metaserver_endpoint} --tier {cluster.endpoint('a')} --tier {cluster.endpoint('b')}"
    found = []
    for row in TABLE:
        where = f"--tier {cluster.endpoint('b')}" if "--one" in row.line else everybody
        for output in row.outputs:
            patience = timeout if getattr(row, column) else "20s"  # what is to work may take its time
            line = f"{row.line.replace('--one', '')} {where} --timeout {patience} {row.option if output else ''} {output}"
            code, out, error, took = run(line, capsys)
            shown = f"{row.line} {output}: {code}\n{out}{error}"
            if code != getattr(row, column):
                found.append(f"expected {getattr(row, column)}: {shown}")
            if "Traceback" in error + out or "internal:" in error:
                found.append(f"a trace: {shown}")
            if took > HANGS_S:
                found.append(f"{took:.0f} s: {shown}")
            if row.option and code == 0 and not out and output != "jsonl":
                found.append(f"said nothing: {shown}")
            if out:
                try:
                    if output == "json":
                        json.loads(out)
                    elif output == "jsonl":
                        [json.loads(part) for part in out.splitlines()]
                except ValueError as wrong:
                    found.append(f"no JSON ({wrong}): {shown}")
    return found


def doctor(cluster: Cluster, timeout: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Exit code, and what to do by what was found."""
    where = f"--metaserver {cluster.metaserver_endpoint} --tier {cluster.endpoint('a')} --tier {cluster.endpoint('b')}"
    code, out, _, _ = run(f"doctor -o json {where} --timeout {timeout}", capsys)
    return code, {row["code"]: row["todo"] for row in json.loads(out)["rows"]}


def test_healthy(cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = complaints(cluster, "healthy", "20s", capsys)
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
    namespaces = dump(cluster.endpoint("a"))["space"]["namespaces"]
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
    control = dump(cluster.endpoint("a"))["control"]
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
    until("it has left", lambda: not dump(cluster.endpoint("b"))["sessions"])


def test_drained_and_taken_back(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"

    def draining() -> bool:
        rows = json.loads(run(f"nodes -o json {where}", capsys)[1])["rows"]
        return {row["node"]: bool(row["draining"]) for row in rows}["a"]

    assert run(f"node drain a --yes --wait 20s {where}", capsys)[0] == 0
    assert draining()
    assert run(f"node undrain a --yes {where}", capsys)[0] == 0
    assert not draining()


def test_a_tier_is_stopped(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    process = cluster.tiers["b"].process
    process.send_signal(signal.SIGSTOP)
    try:
        found = complaints(cluster, "stopped", "200ms", capsys)
        assert not found, "\n".join(found)
        code, codes = doctor(cluster, "3s", capsys)
        assert code == 1 and "SIGSTOP" in codes["no_answer"]
        until("it is given up", lambda: [one for one in dump(cluster.metaserver_endpoint)["left"] if one["node"] == "b"])
        where = f"--metaserver {cluster.metaserver_endpoint} --timeout 20s"
        code, out, _, _ = run(f"doctor -o json {where}", capsys)
        assert code == 1 and "node_lost" in {row["code"] for row in json.loads(out)["rows"]}
        assert run(f"check ping {where}", capsys)[0] == 2, "nobody names its endpoint any more, and it is missed all the same"
    finally:
        process.send_signal(signal.SIGCONT)


def test_the_metaserver_is_dead(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    until("b is back", lambda: dump(cluster.endpoint("b")).get("state") == "ready")
    cluster.metaserver.kill()
    found = complaints(cluster, "dead", "200ms", capsys)
    assert not found, "\n".join(found)
    code, codes = doctor(cluster, "2s", capsys)
    assert code == 1 and "killed" in codes["no_answer"] and codes.keys() <= {"no_answer", "few_files"}
