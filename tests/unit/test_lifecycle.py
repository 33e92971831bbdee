"""A service's states, its reasons for not being ready, its exit codes and its health server."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal

import pytest
from pegaflow.common import clock, metrics
from pegaflow.common.health import MAX_REQUEST_BYTES
from pegaflow.common.lifecycle import (
    EX_OK,
    EX_SOFTWARE,
    EX_TEMPFAIL,
    HealthServer,
    Lifecycle,
    StartError,
    State,
    run,
)
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
        (OSError(errno.EADDRINUSE, "in use"), EX_TEMPFAIL),
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
        port = await server.start_anywhere()
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
        assert (status, headers["Content-Type"], body) == ("200 OK", metrics.CONTENT_TYPE, b"# metrics\n")
        status, headers, body = await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert (status, headers["Content-Length"], body) == ("200 OK", "10", b"")
        await server.close()

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
        port = await server.start_anywhere()
        answered, _, _ = await ask(port, request_)
        assert answered.startswith(status)
        await server.close()

    asyncio.run(main())


def test_a_request_that_never_ends_is_closed() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, request_seconds=0.01)
        port = await server.start_anywhere()
        assert await ask(port, b"GET /ready HTTP/1.1\r\n") == ("", {}, b"")
        await server.close()

    asyncio.run(main())


def test_closing_does_not_wait_for_open_connections() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0, request_seconds=3600)
        port = await server.start_anywhere()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET ")
        # A full round trip on another connection: the server has accepted the first one by now.
        await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        await server.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


def test_port_0_is_off() -> None:
    async def main() -> None:
        server = HealthServer(Lifecycle("tier"), "127.0.0.1", 0)
        await server.start()
        await server.close()

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
    assert b"process_cpu_seconds_total" in metrics.render()
