"""A service's states, its reasons for not being ready, its exit codes and its health server."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest
from pegaflow.common import clock, metrics
from pegaflow.common.health import MAX_CONNECTIONS, MAX_REQUEST_BYTES
from pegaflow.common.lifecycle import (
    EX_CONFIG,
    EX_OK,
    EX_SOFTWARE,
    EX_TEMPFAIL,
    HealthServer,
    Lifecycle,
    StartError,
    State,
    run,
)
from pegaflow.common.listening import listening
from pegaflow.common.loop_watch import LoopWatch
from prometheus_client import CollectorRegistry


def test_not_ready_before_it_says_so() -> None:
    life = Lifecycle("tier")
    assert not life.ready
    assert life.reasons() == [{"code": "starting", "text": "the service is starting"}]
    life.set_ready()
    assert life.ready
    assert life.reasons() == []


def test_reasons_stand_against_readiness_and_go_again() -> None:
    life = Lifecycle("tier")
    life.set_ready()
    life.set_reason("pool", "0 of 256 MiB")
    life.set_reason("pool", "128 of 256 MiB")
    assert not life.ready
    assert life.reasons() == [{"code": "pool", "text": "128 of 256 MiB"}]
    life.clear_reason("pool")
    life.clear_reason("never set")
    assert life.ready


def test_drain_is_idempotent_and_not_undone() -> None:
    life = Lifecycle("tier")
    life.set_ready()
    life.drain()
    life.drain()
    life.set_ready()
    assert life.state.value == "draining"
    assert [reason["code"] for reason in life.reasons()] == ["draining"]
    life.set_stopped()
    life.set_stopped()
    life.drain()
    assert life.state is State.STOPPED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_begin_the_drain(number: signal.Signals) -> None:
    life = Lifecycle("tier")

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        life.set_ready()
        os.kill(os.getpid(), number)
        await life.wait_drain()
        assert life.state is State.DRAINING

    assert run(main, life) == EX_OK
    assert life.state is State.STOPPED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StartError("pool_busy", "another tier holds it"), EX_TEMPFAIL),
        (StartError("bad_endpoint", "an address of another machine"), EX_CONFIG),
        (StartError("unsafe_path", "open to others"), EX_CONFIG),
        (OSError(errno.EACCES, "denied"), EX_SOFTWARE),
        (RuntimeError("bug"), EX_SOFTWARE),
    ],
)
def test_exceptions_become_exit_codes(error: Exception, code: int) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        raise error

    assert run(main, Lifecycle("tier")) == code


async def ask(port: int, request: bytes) -> tuple[str, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return first.partition(" ")[2], dict(line.split(": ", 1) for line in rest), body


def test_the_health_server_shows_state_metrics_and_version() -> None:
    life = Lifecycle("tier")

    async def main() -> None:
        server = HealthServer(life, "127.0.0.1", 0, render=lambda: b"# metrics\n")
        port = server.start_anywhere()
        status, headers, body = await ask(port, b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status.startswith("503")
        assert headers["Content-Type"] == "application/json"
        assert json.loads(body) == {"ready": False, "reasons": life.reasons()}
        life.set_ready()
        status, _, body = await ask(port, b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, json.loads(body)) == ("200 OK", {"ready": True, "reasons": []})
        status, _, body = await ask(port, b"GET /health?x=1 HTTP/1.0\r\n\r\n")
        assert (status, json.loads(body)) == ("200 OK", {"state": "ready"})
        _, _, body = await ask(port, b"GET /version HTTP/1.1\r\n\r\n")
        assert json.loads(body)["service"] == "tier"
        status, headers, body = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (status, headers["Content-Type"]) == ("200 OK", metrics.CONTENT_TYPE)
        assert body.startswith(b"# metrics\n") and b"process_cpu_seconds_total" in body
        status, headers, body = await ask(port, b"HEAD /version HTTP/1.1\r\n\r\n")
        assert (status, body) == ("200 OK", b"") and int(headers["Content-Length"]) > 0
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", "404"),
        (b"POST /ready HTTP/1.1\r\n\r\n", "405"),
        (b"nonsense\r\n\r\n", "400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES + b"\r\n\r\n", "431"),
    ],
)
def test_the_health_server_refuses_what_it_does_not_serve(request_: bytes, status: str) -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0)
        port = server.start_anywhere()
        answered, _, _ = await ask(port, request_)
        assert answered.startswith(status)
        server.close()

    asyncio.run(main())


def test_a_request_that_never_ends_is_closed() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, request_seconds=0.01)
        port = server.start_anywhere()
        assert await ask(port, b"GET /ready HTTP/1.1\r\n") == ("", {}, b"")
        server.close()

    asyncio.run(main())


def test_closing_does_not_wait_for_open_connections() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, request_seconds=3600)
        port = server.start_anywhere()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET ")
        # A full round trip on another connection: the server has accepted the first one by now.
        await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        server.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


def test_port_0_is_off() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0)
        server.start()
        server.close()

    asyncio.run(main())


def test_the_clock_does_not_go_back_and_numbers_are_never_0() -> None:
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)
    numbers = {clock.random_u64() for _ in range(100)}
    assert len(numbers) == 100
    assert all(0 < number < 1 << 64 for number in numbers)


def test_metric_names_follow_the_rule() -> None:
    into = CollectorRegistry()
    metrics.counter("pegaflow_tier_pages_saved_total", "pages", into=into).inc()
    metrics.gauge("pegaflow_tier_pool_bytes", "bytes", into=into).set(3)
    metrics.histogram("pegaflow_tier_fetch_seconds", "time", into=into).observe(0.1)
    text = metrics.render(into).decode()
    assert "pegaflow_tier_pages_saved_total 1.0" in text
    for make in (metrics.counter, metrics.histogram):
        with pytest.raises(ValueError, match="must be pegaflow_"):
            make("pegaflow_tier_saved", "no unit", into=into)
    with pytest.raises(ValueError, match="must be pegaflow_"):
        metrics.gauge("tier_pool_bytes", "no prefix", into=into)
    assert metrics.registry() is metrics.registry()
    assert b"process_cpu_seconds_total" in metrics.render(metrics.process())


def get(port: int, path: str) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        head, _, body = sock.makefile("rb").read().decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


def test_a_loop_that_does_not_turn_is_seen_from_outside() -> None:
    life = Lifecycle("tier")
    life.watch.stuck_s = 0.1
    numbers = itertools.count(1)
    server = HealthServer(life, "127.0.0.1", 0, render=lambda: f"# asked {next(numbers)}\n".encode())
    seen: dict[str, tuple[int, str]] = {}
    go_on = threading.Event()

    def look(port: int) -> None:
        try:
            while (seen.setdefault("health", (0, ""))[0]) != 503:
                seen["health"] = get(port, "/health")
            seen.update((path, get(port, path)) for path in ("/metrics", "/metrics", "/ready", "/version"))
        finally:
            go_on.set()

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        life.set_ready()
        port = server.start_anywhere()
        try:
            assert await asyncio.to_thread(get, port, "/health") == (200, '{"state": "ready"}')
            first = await asyncio.to_thread(get, port, "/metrics")
            assert first[1].startswith("# asked 1\n")
            looker = threading.Thread(target=look, args=(port,))
            looker.start()
            assert go_on.wait(30)  # here the loop stands still
            looker.join()
            again = await asyncio.to_thread(get, port, "/metrics")
            # Once for all who wanted to know while it stood still; the one who asks now may still get that answer.
            assert again[1].startswith(("# asked 2\n", "# asked 3\n"))
            while (await asyncio.to_thread(get, port, "/health"))[0] != 200:
                await asyncio.sleep(0)
        finally:
            server.close()

    assert run(main, life) == EX_OK
    stuck = json.loads(seen["health"][1])
    assert stuck["code"] == "loop_stuck" and stuck["seconds"] >= 0.1
    assert any(" main" in call for call in stuck["where"]), stuck["where"]
    status, text = seen["/metrics"]
    assert status == 200 and text.startswith("# asked 1\n"), "what it said last"
    (stalled,) = re.findall(r"^pegaflow_process_loop_stalled_seconds (\S+)", text, re.MULTILINE)
    assert float(stalled) > 0
    assert seen["/ready"][0] == 503 and "loop_stuck" in seen["/ready"][1]
    assert seen["/version"][0] == 200


def test_metrics_that_cannot_be_read_are_an_error_and_the_server_goes_on() -> None:
    def broken() -> bytes:
        raise KeyError("gone")

    server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, render=broken)
    port = server.start_anywhere()
    assert get(port, "/metrics")[0] == 500
    assert get(port, "/health")[0] == 200
    server.close()


def test_an_address_in_use_is_said_where_the_server_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(StartError, match=r"address_in_use: .* port \d+") as told:
            server.start()
        assert told.value.exit_code == EX_TEMPFAIL
        server.close()


@pytest.mark.parametrize("host", ["10.0.0..1", "a\0b", "203.0.113.1"])
def test_an_address_that_is_none_or_another_machines_is_said_too(host: str) -> None:
    server = HealthServer(Lifecycle("tier"), host, 1)
    with pytest.raises(StartError) as told:
        server.start()
    assert (told.value.code, told.value.exit_code) == ("bad_endpoint", EX_CONFIG) and repr(host) in told.value.text
    server.close()


def test_a_name_that_is_not_found_is_said_too() -> None:
    server = HealthServer(Lifecycle("tier"), "no.such.host.invalid", 1)
    with pytest.raises(StartError) as told:
        server.start()
    assert told.value.code in ("bad_endpoint", "not_resolved"), "the latter where there is no resolver"
    server.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "address_in_use"),
        (OSError(errno.EACCES, "denied"), "bad_endpoint"),
        (OSError(errno.EADDRNOTAVAIL, "not here"), "bad_endpoint"),
        (OSError("could not bind on any address"), "bad_endpoint"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "bad_endpoint"),
        (OSError(socket.EAI_NONAME, "as create_server says it"), "bad_endpoint"),
        (socket.gaierror(socket.EAI_AGAIN, "no resolver"), "not_resolved"),
        (UnicodeError("label empty"), "bad_endpoint"),
    ],
)
def test_what_is_wrong_with_an_address_has_a_code(error: Exception, code: str) -> None:
    with pytest.raises(StartError) as told, listening("h", 1):
        raise error
    assert told.value.code == code


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many files"), RuntimeError("bug")])
def test_what_is_not_about_the_address_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as told, listening("h", 1):
        raise error
    assert told.value is error


def test_connections_that_say_nothing_do_not_keep_a_probe_out() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, request_seconds=3600)
        port = server.start_anywhere()
        assert server._loop is not None
        let_go = threading.Event()
        server._loop.call_soon_threadsafe(let_go.wait)  # so that all of them are accepted in one turn, before any was served
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS + 3)]
        let_go.set()
        assert (await ask(port, b"GET /health HTTP/1.1\r\n\r\n"))[0] == "200 OK"
        assert await silent[0][0].read() == b"", "the oldest made room"
        server.close()
        for _, writer in silent:
            writer.close()

    asyncio.run(main())


def test_systemds_watchdog_is_fed_by_the_loop(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(10)

        async def main() -> list[bytes]:
            watch = LoopWatch({"NOTIFY_SOCKET": path})
            watch.start(asyncio.get_running_loop())
            try:
                return [await asyncio.to_thread(systemd.recv, 100) for _ in range(3)]
            finally:
                watch.stop()

        assert asyncio.run(main()) == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_service_that_rests_is_draining_and_may_go_on() -> None:
    life = Lifecycle("tier")
    life.rest(True)
    assert str(life.state) == "starting"
    life.set_ready()
    assert str(life.state) == "draining", "it was told to rest while it started"
    life.rest(False)
    life.rest(False)
    assert life.ready
    life.rest(True)
    life.drain()
    life.rest(False)
    assert life.state is State.DRAINING, "it ends"
    asyncio.run(asyncio.wait_for(life.wait_drain(), 1))
