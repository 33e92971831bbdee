"""A cluster under keys, and strangers at its doors: refused with a code, counted, and everything goes on serving."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Engine, ask, dump, make_keys, page_bytes, told, until
from fuzzing import SAMPLES, bodies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keys import Keys
from pegaflow.common.bus.endpoint import without_key
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.locks import ProcessLock
from pegaflow.common.wire.envelope import PublicationHeader, RequestHeader, frames
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError
from pegaflow.common.wire.messages import catalogue, operate, transfer

EX_CONFIG = 78
FUZZ = int(os.environ.get("PEGAFLOW_FUZZ_SOCKET", "300"))

pytestmark = pytest.mark.timeout(120)


def short_folder() -> Path:
    made = Path("/tmp") / f"pfs-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    made.mkdir(mode=0o700)
    return made


class Keyed:
    """A cluster under keys, with an operator's, a router's, an engine's and a stranger's beside."""

    def __init__(self, folder: Path) -> None:
        self.keys = keys = Keys(folder)
        self.operator, self.router = keys.client(Role.OPERATOR), keys.client(Role.ROUTER)
        self.engine, self.stranger = keys.client(Role.ENGINE), keys.client(Role.TIER, "a", listed=False)
        self.other_tier = keys.client(Role.TIER, "c")
        self.cluster = Cluster(folder, keys=keys, mover=True)

    def nodes(self) -> catalogue.NodeList:
        return ask(self.cluster.metaserver_endpoint, catalogue.Nodes(), ring=self.operator)  # type: ignore[no-any-return]

    def endpoint(self, node: str) -> str:
        """Of a tier's requests, over TCP, as the metaserver tells it."""
        nodes = self.nodes()
        return nodes.requests[list(nodes.nodes).index(node)]

    def kept(self, endpoint: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(ask(endpoint, operate.Dump(), ring=self.operator).json)
        return document


@pytest.fixture(scope="module")
def keyed() -> Iterator[Keyed]:
    folder = short_folder()
    made = Keyed(folder)
    with made.cluster:
        made.cluster.wait_ready()
        yield made


def refused(endpoint: str, message: Any, ring: Keyring | None, seconds: float = 5.0) -> str:
    with pytest.raises(RemoteError) as told:
        ask(endpoint, message, seconds, ring)
    return told.value.code


def test_a_page_goes_from_node_to_node_under_keys(keyed: Keyed) -> None:
    keys = make_keys(5)
    p, d = Engine(keyed.cluster, "a", "p").attached(), Engine(keyed.cluster, "b", "d").attached()
    p.save(keys)
    answer = d.lookup(keys, expected=True)
    assert (answer.full, set(answer.sources)) == (5, {1})
    assert d.load(answer) == [page_bytes(key) for key in keys]
    p.close()
    d.close()
    nodes = keyed.nodes()
    assert all("#" in endpoint for column in (nodes.requests, nodes.events, nodes.control) for endpoint in column)


def test_the_inspection_tool_comes_in_with_an_operators_key_only(keyed: Keyed, tmp_path: Path) -> None:
    def status(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pegaflow.services.cli", "status", "--timeout", "8s", "-o", "json", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    at = keyed.cluster.metaserver_endpoint
    good = status("--metaserver", at, "--curve-key-file", str(keyed.keys.file(Role.OPERATOR, listed=False)))
    assert good.returncode == 1 and "key_refused" in good.stdout + good.stderr, "a key that is not listed"
    secret = next(path for path in keyed.keys.allowed.parent.glob("operator-*") if path.stat().st_mode & 0o777 == 0o600)
    good = status("--metaserver", at, "--curve-key-file", str(secret))
    assert good.returncode == 0, good.stdout + good.stderr
    assert all(f'"{service}"' in good.stdout for service in ("metaserver", "tier")), good.stdout
    assert status("--metaserver", at).returncode == 2, "without a key, an endpoint with one is a usage error"
    assert status("--metaserver", without_key(at), "--curve-key-file", str(secret)).returncode == 2


def counted(keyed: Keyed, endpoint: str, known: int) -> bool:
    return bool(keyed.kept(endpoint)["refused"].get("unknown_key", 0) > known)


@pytest.mark.parametrize("who", ["stranger", None, "engine", "router", "other_tier"])
def test_who_may_not_is_refused_and_counted_and_the_service_goes_on(keyed: Keyed, who: str | None) -> None:
    ring: Keyring | None = getattr(keyed, who) if who else None
    places = {"tier": keyed.endpoint("a"), "metaserver": keyed.cluster.metaserver_endpoint}
    for service, endpoint in places.items():
        before = keyed.kept(endpoint)
        if who in ("stranger", None):
            at = endpoint if ring is not None else without_key(endpoint)
            assert refused(at, operate.Ping(), ring, 0.5) in (ErrorCode.DEADLINE, ErrorCode.UNREACHABLE)
            if who == "stranger":
                known = before["refused"].get("unknown_key", 0)
                until("counted", partial(counted, keyed, endpoint, known))
            continue
        wrong = [operate.Drain(), operate.Dump(), operate.LogLevel("debug")]
        if service == "metaserver" and who == "other_tier":
            wrong += [catalogue.Bye("a", 1), catalogue.Hello("a", 1, "tcp://h:1", "tcp://h:2", "tcp://h:3", "0")]
        elif service == "metaserver":
            wrong += [catalogue.Hello("z", 1, "tcp://h:1", "tcp://h:2", "tcp://h:3", "0")]
        elif who == "other_tier":
            wrong += [transfer.Pin("b", make_keys(1), 1, 1000), SAMPLES["attach"], SAMPLES["lookup"]]
        else:
            wrong += [transfer.Pin("b", make_keys(1), 1, 1000)]
        for message in wrong:
            assert refused(endpoint, message, ring) == ErrorCode.FORBIDDEN, message
        after = keyed.kept(endpoint)
        assert after["forbidden"] - before["forbidden"] == len(wrong)
        assert after["state"] == "ready"
    until("nobody's hello or bye has moved anybody", lambda: list(keyed.nodes().states) == ["up", "up"])


def test_a_claimed_identity_over_ipc_is_refused_by_its_proof(keyed: Keyed) -> None:
    """On the node the token of a session, and the lock of a process, are what nobody else has."""
    engine = Engine(keyed.cluster, "a", "victim").attached()
    attached = engine.scheduler._attached
    assert attached is not None
    endpoint = keyed.cluster.endpoint("a")
    before = dump(endpoint)
    held = Path(keyed.cluster.runtime("a") / "sessions")
    name = next(path.name for path in held.iterdir() if path.is_file() and len(path.name) == 32)
    for attach, code in (
        (replace(SAMPLES["attach"], lock_name=name, nonce=b"x" * 16), "bad_member"),  # another's lock, without its nonce
        (replace(SAMPLES["attach"], lock_name=f"../{'a' * 29}"), "bad_member"),
        (replace(SAMPLES["attach"], lock_name="../sessions/" + name), "bad_member"),
    ):
        assert refused(endpoint, attach, None) == code
    factory = SocketFactory()
    sock = factory.xpub(f"ipc://{keyed.cluster.runtime('a')}/intents.sock")
    assert sock.recv(), "the tier's subscription"
    for token in (b"", bytes(16), attached.token[:-1] + bytes((attached.token[-1] ^ 1,))):
        header = PublicationHeader(attached.session, attached.member, 1, token)
        sock.send_multipart(frames("intent", b"\x90", header, b"i"))
        sock.send_multipart(frames("alive", bytes((0x93, 1, 2, 3)), header, b"i"))
    until(
        "counted",
        lambda: told(endpoint)["counts"].get("foreign_publications", 0) >= before["counts"].get("foreign_publications", 0) + 3,
    )
    factory.close()
    keys = make_keys(2, salt=9)
    assert engine.save(keys).positions, "the victim's session lives on"
    engine.close()


def test_a_key_that_is_struck_off_is_refused_after_sighup(keyed: Keyed) -> None:
    keys = keyed.keys
    leaving = keys.client(Role.OPERATOR)
    at = keyed.cluster.metaserver_endpoint
    process = keyed.cluster.metaserver.process
    assert refused(at, operate.Ping(), leaving, 0.5) == ErrorCode.DEADLINE, "listed in the file, and not read yet"
    process.send_signal(signal.SIGHUP)
    until("it comes in", lambda: isinstance(attempt(at, leaving), operate.Pong))
    keys.strike(leaving)
    process.send_signal(signal.SIGHUP)
    until("it does not any more", lambda: attempt(at, leaving) is None)
    assert isinstance(ask(at, operate.Ping(), ring=keyed.operator), operate.Pong)


def attempt(endpoint: str, ring: Keyring) -> Any:
    try:
        return ask(endpoint, operate.Ping(), 0.5, ring)
    except RemoteError:
        return None


@pytest.mark.parametrize("where", ["tier", "intents", "metaserver"])
def test_fuzzed_envelopes_over_a_real_socket_cost_nothing_but_their_answer(keyed: Keyed, where: str) -> None:
    if where == "metaserver":
        endpoint, ring = keyed.cluster.metaserver_endpoint, keyed.other_tier
    else:
        endpoint, ring = keyed.cluster.endpoint("b"), None
    factory = SocketFactory(ring)
    sock = factory.dealer(endpoint) if where != "intents" else factory.xpub(f"ipc://{keyed.cluster.runtime('b')}/intents.sock")
    if where == "intents":
        assert sock.recv()
    engine = Engine(keyed.cluster, "b", f"fuzz-{where}").attached()
    before = keyed.kept(endpoint) if where == "metaserver" else dump(endpoint)
    safe = sorted(set(SAMPLES) - {"drain"})

    @settings(max_examples=FUZZ, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(safe).flatmap(lambda kind: st.tuples(st.just(kind), bodies(kind))))
    def throw(case: tuple[str, bytes]) -> None:
        kind, body = case
        header = PublicationHeader(1, 1, 0, b"t" * 16) if where == "intents" else RequestHeader(1, 100, 0)
        sock.send_multipart(frames(kind, body, header, b"i"))
        while sock.poll(0):
            sock.recv_multipart()

    throw()
    keys = make_keys(2, salt=ord(where[0]))
    assert engine.save(keys).positions
    assert engine.load(engine.lookup(keys)) == [page_bytes(key) for key in keys]
    engine.close()
    factory.close()
    after = keyed.kept(endpoint) if where == "metaserver" else dump(endpoint)
    assert after["state"] == "ready"
    assert after["malformed"] + after["forbidden"] > before["malformed"] + before["forbidden"]
    assert after["failed_commands"] == before["failed_commands"]
    until("both are up", lambda: list(keyed.nodes().states) == ["up", "up"])


# --- without keys, and what the file system must not allow -----------------------------------------------------------------


def run_tier(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pegaflow.services.tier", "--no-mover", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_is_open_to_others_whatever_the_umask() -> None:
    folder, shm = short_folder(), Path(f"/dev/shm/pegaflow-test-{os.getpid()}-umask")
    old = os.umask(0)
    try:
        disk = ["--evict-high", "0.5", "--evict-low", "0.25", "--disk-dir", str(folder / "d" / "disk"), "--disk-size", "64MiB"]
        made = Cluster(folder, tiers="a", mover=True, pool="16MiB", more=[*disk, "--pool-dir", f"{shm}/pools"])
        made.pools = shm / "pools"
        with made as cluster:
            cluster.wait_ready()
            engine = Engine(cluster, "a").attached()
            engine.save(make_keys(250))
            until("something is on disk", lambda: told(cluster.endpoint("a"))["disk"]["pages"])
            found = [*cluster.runtime("a").rglob("*"), cluster.runtime("a")]
            found += [*(cluster.pools / "a").rglob("*"), cluster.pools / "a"]
            found += [*(folder / "d" / "disk" / "a").rglob("*"), folder / "d" / "disk" / "a"]
            names = {path.suffix or path.name for path in found}
            assert {".sock", ".pages", ".log", "lock"} <= names, "all kinds of files were there to be looked at"
            assert any(path.name.startswith("pool-") for path in found) and any(path.parent.name == "sessions" for path in found)
            open_to_others = [
                (str(path), oct(path.lstat().st_mode)) for path in found if path.lstat().st_mode & 0o077 and not path.is_symlink()
            ]
            assert open_to_others == []
            for parent in (shm, cluster.pools, folder / "d" / "disk", folder / "d"):
                assert not parent.stat().st_mode & 0o022, "nor can others put another directory there"
            engine.close()
    finally:
        os.umask(old)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)


@pytest.mark.parametrize("what", ["group", "world", "linked", "file"])
def test_a_runtime_directory_that_others_reach_into_is_refused(what: str) -> None:
    folder = short_folder()
    runtime = folder / "r"
    match what:
        case "group":
            runtime.mkdir()
            runtime.chmod(0o750)
        case "world":
            runtime.mkdir()
            runtime.chmod(0o777)
        case "linked":
            (folder / "target").mkdir()
            (folder / "target").chmod(0o777)
            runtime.symlink_to(folder / "target")
        case "file":
            runtime.touch()
    try:
        done = run_tier("--runtime-dir", str(runtime), "--pool-dir", str(folder / "p"), "--pool-size", "16MiB")
        assert done.returncode == EX_CONFIG and '"code": "unsafe_path"' in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_an_engine_does_not_talk_to_whoever_has_made_its_directory() -> None:
    """Another user could make the folder first, and answer there in a tier's place."""
    folder = short_folder()
    (folder / "r").mkdir()
    (folder / "r").chmod(0o777)
    try:
        with pytest.raises(LocalError) as told:
            ProcessLock.acquire(folder / "r" / "sessions")
        assert told.value.code == ErrorCode.UNSAFE_PATH
        assert not (folder / "r" / "sessions").exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_documented_deployment_is_accepted_as_it_stands_there(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    block = page.partition("```sh\n")[2].partition("```")[0]
    assert block.count("pegaflow") > 7
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = f"umask 022\nset -euo pipefail\n{block}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("config ok") == 3
