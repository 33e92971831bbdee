"""What an operator or a stranger can get wrong: a clear error with its code, a telling exit code, no hang."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from cluster import PAGE_BYTES, Cluster, Engine, Process, ask, dump, free_port, make_keys, told, until
from pegaflow.common import clock
from pegaflow.common.bus.sockets import MAX_MESSAGE_BYTES, SocketFactory
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.attach import Attach
from pegaflow.common.wire.messages.loads import Lookup
from pegaflow.common.wire.messages.operate import Ping, Pong
from pegaflow.connector.bus import SchedulerBus
from pegaflow.connector.session import AttachRefused, AttachState, Member, TierOptions

EX_CONFIG, EX_TEMPFAIL = 78, 75


def run_tier(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pegaflow.services.tier", "--runtime-dir", str(folder / "r"), "--no-mover", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path("/tmp") / f"pfbad-{os.getpid()}-{os.urandom(3).hex()}"
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree("/dev/shm/pfbad", ignore_errors=True)


@pytest.fixture
def tier(folder: Path) -> Iterator[Cluster]:
    with Cluster(folder, tiers="a", mover=False) as made:
        made.wait_ready()
        yield made


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pool-sise", "1GiB"], "pool-sise"),
        (["--pool-size", "12 apples"], "apples"),
        (["--pool-size", "100001"], "multiple of 16384"),
        (["--requests", "tcp://127.0.0.1"], "tcp://HOST:PORT"),
        (["--requests", "http://127.0.0.1:80"], "tcp://HOST:PORT"),
        (["--metaserver", "tcp://127.0.0.1:70000"], "1 to 65535"),
        (["--node", "a/b"], "letters, digits"),
        (["--fingerprint", "abc"], "32 hex digits"),
        (["--runtime-dir", "/" + "x" * 120], "too long"),
    ],
)
def test_a_wrong_option_is_named_and_a_supervisor_does_not_try_again(folder: Path, flags: list[str], says: str) -> None:
    done = run_tier(folder, *flags)
    assert done.returncode == EX_CONFIG
    assert "bad_config" in done.stderr and says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_in_the_file_is_named(folder: Path) -> None:
    (folder / "pegaflow.toml").write_text('[tier]\npool_siez = "1GiB"\n')
    done = run_tier(folder, "--config", str(folder / "pegaflow.toml"))
    assert done.returncode == EX_CONFIG
    assert "pool_siez" in done.stderr and "pool_size" in done.stderr, "with the name that was meant"


def test_a_pool_larger_than_memory_is_refused_with_both_figures(folder: Path) -> None:
    done = run_tier(folder, "--pool-dir", "/dev/shm/pfbad", "--pool-size", "64TiB")
    assert done.returncode == EX_TEMPFAIL
    assert '"code": "pool_too_large"' in done.stderr and "67108864 MiB" in done.stderr and "available" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(folder: Path) -> None:
    context = zmq.Context()
    taken = context.socket(zmq.ROUTER)
    port = free_port()
    taken.bind(f"tcp://127.0.0.1:{port}")
    done = run_tier(
        folder,
        "--pool-dir",
        "/dev/shm/pfbad",
        "--pool-size",
        "16MiB",
        "--requests",
        f"tcp://127.0.0.1:{port}",
        "--events",
        "tcp://127.0.0.1:*",
    )
    taken.close()
    context.term()
    assert done.returncode == EX_TEMPFAIL
    assert '"code": "port_in_use"' in done.stderr and str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_tier_on_one_pool_is_refused(tier: Cluster, folder: Path) -> None:
    flags = tier.tiers["a"].command[3:]
    pool = flags[flags.index("--pool-dir") + 1]
    done = run_tier(folder / "other", "--node", "a", "--pool-dir", pool, "--pool-size", "16MiB")
    assert done.returncode == EX_TEMPFAIL
    assert '"code": "pool_busy"' in done.stderr


def attach(**changes: object) -> Attach:
    fields = {
        "protocol": 1,
        "package": "test",
        "engine": "e",
        "role": "scheduler",
        "rank": 0,
        "shard": 0,
        "shards": 1,
        "stripe": 0,
        "stripes": 1,
        "base": b"b" * 16,
        "fingerprint": b"f" * 16,
        "factors": [],
        "layouts": b"l" * 16,
        "page_bytes": u32s([PAGE_BYTES]),
        "mode": "read_write",
        "pid": 1,
        "lock_name": "0" * 32,
        "nonce": b"n" * 16,
        "first_seq": 1,
    }
    return Attach(**(fields | changes))  # type: ignore[arg-type]


def test_an_attach_without_a_visible_lock_is_refused(tier: Cluster) -> None:
    with pytest.raises(RemoteError) as told:
        ask(tier.endpoint("a"), attach())
    assert told.value.code == "lock_not_visible"
    with pytest.raises(RemoteError) as told:
        ask(tier.endpoint("a"), attach(lock_name="../../../../etc/passwd0000000000"))
    assert told.value.code == "bad_member"


def test_a_stranger_cannot_use_a_session(tier: Cluster) -> None:
    engine = Engine(tier, "a").attached()
    session = engine.scheduler.session()
    assert session is not None
    with pytest.raises(RemoteError) as told:
        ask(tier.endpoint("a"), Lookup(session.session, b"guess" * 3 + b"!", 1, "r", make_keys(1), [], 100, False))
    assert told.value.code == "bad_token"
    with pytest.raises(RemoteError) as told:
        ask(tier.endpoint("a"), Lookup(5, b"t" * 16, 1, "r", make_keys(1), [], 100, False))
    assert told.value.code == "not_attached"
    engine.close()


def test_another_layout_under_the_same_fingerprint_stops_the_engine_with_both_values(tier: Cluster) -> None:
    engine = Engine(tier, "a").attached()
    options = TierOptions(tier.endpoint("a"), tier.runtime("a"), "read_write", 2.0, 5.0)
    other = SchedulerBus(
        options,
        Member("other", "scheduler", 0, 0, 1, 0, 1),
        b"b" * 16,
        b"f" * 16,
        {},
        [b"m" * 16],
        [PAGE_BYTES],
        clock=clock.now,
    )
    with pytest.raises(AttachRefused) as told:
        other.wait_attached(30)
    assert told.value.code == "layout_mismatch"
    assert (b"m" * 16).hex() in told.value.text and (b"l" * 16).hex() in told.value.text
    other.close()
    engine.close()


def test_an_absent_tier_is_no_error_and_is_taken_when_it_comes(folder: Path) -> None:
    options = TierOptions(f"ipc://{folder}/a/requests.sock", folder / "a", "read_write", 0.2, 5.0)
    bus = SchedulerBus(
        options, Member("e", "scheduler", 0, 0, 1, 0, 1), b"b" * 16, b"f" * 16, {}, [b"l" * 16], [PAGE_BYTES], clock=clock.now
    )
    assert bus.wait_attached(0.5) is AttachState.ABSENT
    assert bus.session() is None
    assert bus.publish_intent(make_keys(1), [32], [0], ["r"], 0) is None
    assert not bus.lookup(1, "r", make_keys(1), [], 1.0, False)
    with Cluster(folder, tiers="a", mover=False):
        assert bus.wait_attached(30) is AttachState.ATTACHED
        bus.close()


def raw(endpoint: str, frames: list[bytes], wait_ms: int = 20_000) -> list[bytes] | None:
    """Sends bytes as they are; the answer, or None if the connection was closed on us. A good ping must still work after it."""

    async def talk() -> list[bytes] | None:
        factory = SocketFactory()
        sock = factory.dealer(endpoint)
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        sock.send_multipart(frames)
        got = sock.recv_multipart() if poller.poll(wait_ms) else None
        factory.close()
        return got

    got = asyncio.run(talk())
    assert isinstance(ask(endpoint, Ping()), Pong)
    return got


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"", b"\x01ping"], "bad_envelope"),
        ([b"", b"\x07ping", b"\x93\x01\x02\x00", b"\x90"], "protocol_mismatch"),
        ([b"", b"\x01ping", b"\xff\xff", b"\x90"], "bad_envelope"),
        ([b"", b"\x01no_such_kind", b"\x93\x05\xcd\x03\xe8\x00", b"\x90"], "unsupported"),
        ([b"", b"\x01unpin", b"\x93\x05\xcd\x03\xe8\x00", b"\x90"], "bad_message"),
        ([b"", b"\x01unpin", b"\x93\x05\xcd\x03\xe8\x00", b"\x91\xa1x"], "bad_message"),
        (encode(Ping(), RequestHeader(5, 1000, 12345)), "wrong_epoch"),
    ],
)
def test_bytes_that_make_no_sense_are_answered_with_a_code(tier: Cluster, frames: list[bytes], code: str) -> None:
    got = raw(tier.endpoint("a"), frames)
    assert got is not None
    envelope = open_envelope(got, ReplyHeader)
    assert envelope.kind == "error"
    assert envelope.message().code == code


def test_an_oversized_message_ends_its_connection_and_nothing_else(tier: Cluster) -> None:
    assert raw(tier.endpoint("a"), [b"", b"\x01ping", b"\x90", b"x" * (MAX_MESSAGE_BYTES + 1)], wait_ms=2000) is None


def test_rubbish_on_the_intents_socket_is_counted(tier: Cluster) -> None:
    engine = Engine(tier, "a").attached()
    before = told(tier.endpoint("a"))["malformed"]
    factory = SocketFactory()
    sock = factory.xpub(f"ipc://{tier.runtime('a')}/intents.sock")
    assert sock.recv(), "the tier's subscription"
    sock.send_multipart([b"i", b"\x01intent", b"\x94\x01\x02\x03\xc4\x00", b"rubbish"])
    until("it was counted", lambda: told(tier.endpoint("a"))["malformed"] == before + 1)
    factory.close()
    assert engine.save(make_keys(1)).positions, "the engine's own publications still come through"
    engine.close()


@pytest.mark.parametrize("warm", [True, False])
def test_a_tier_ends_cleanly_on_sigterm(folder: Path, warm: bool) -> None:
    """Its pool is left for the next life, or removed where there is to be none."""
    place = Path(f"/dev/shm/pegaflow-test-{os.getpid()}-sigterm")
    pool = ["--pool-dir", str(place), "--pool-size", "16MiB", "--no-mover", "--warm-restart" if warm else "--no-warm-restart"]
    tier = Process("pegaflow.services.tier", "--node", "z", "--runtime-dir", str(folder / "z"), *pool)
    try:
        until("ready", lambda: dump(f"ipc://{folder}/z/requests.sock").get("state") == "ready")
        assert tier.stop() == 0
        assert [len(list(place.glob(f"z/{kind}-*"))) for kind in ("pool", "table")] == [int(warm)] * 2
    finally:
        tier.stop()
        shutil.rmtree(place, ignore_errors=True)
