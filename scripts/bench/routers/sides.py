"""What is measured: the backend alone, and the routers before it, all of them running all the time.

load ──▶ backend                                     alone
load ──▶ nginx, pegaflow, vllm-router ──▶ backend
load ──▶ pegaflow, vllm-router ──▶ prefill backend, then decode backend
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from children import Children, free_port
from private_venv import Missing

from routers.nginx import nginx_version, start_nginx
from routers.pegaflow_router import start_pegaflow_router
from routers.question import Question
from routers.rows import ALONE, NGINX, OURS, OURS_FIRST, OURS_PD, PEERS, THEIRS, THEIRS_PD
from routers.vllm_router import PACKAGE, start_vllm_router

START_S: Final = 30.0


class Side(NamedTuple):
    """`pids`: of the router; none where there is none."""

    name: str
    port: int
    pids: tuple[int, ...]


VERSIONS: Final[dict[str, Callable[[], str]]] = {NGINX: nginx_version, THEIRS: lambda: PACKAGE, THEIRS_PD: lambda: PACKAGE}
Start = Callable[[int], int]
"""Starts a router on this port; its pid."""


def start_sides(
    children: Children, questions: list[Question], *, peers: bool
) -> tuple[list[Side], dict[str, str], dict[str, str]]:
    """Those that answer all `questions` right, why the others are missing, and versions of peers.

    A wrong answer of ours ends the benchmark.
    """
    prefill, decode = (_backend(children) for _ in range(2))
    starts: dict[str, Start] = {
        NGINX: lambda port: start_nginx(children, port, decode),
        OURS: lambda port: start_pegaflow_router(children, port, [decode]),
        THEIRS: lambda port: start_vllm_router(children, port, [decode]),
        OURS_PD: lambda port: start_pegaflow_router(children, port, [prefill, decode]),
        OURS_FIRST: lambda port: start_pegaflow_router(children, port, [prefill, decode], first_token=True),
        THEIRS_PD: lambda port: start_vllm_router(children, port, [prefill, decode]),
    }
    sides, missing = [Side(ALONE, decode, ())], {}
    for name, start in starts.items():
        if not (peers or name in PEERS):
            missing[name] = "--no-peers"
            continue
        port = free_port()
        try:
            side = Side(name, port, (start(port),))
            for question in questions:
                _check(side, question)
        except Missing as why:
            if name in PEERS:
                raise SystemExit(f"{name}: {why}") from None
            missing[name] = str(why)
            print(f"{name} is left out: {why}", flush=True)
        else:
            sides.append(side)
    return sides, missing, {name: what() for name, what in VERSIONS.items() if any(side.name == name for side in sides)}


def _backend(children: Children) -> int:
    """Its port."""
    port = free_port()
    children.helper([sys.executable, "-m", "routers.backend", str(port)]).ready()
    return port


def _check(side: Side, question: Question) -> None:
    """Raises Missing where the answer is not right; the first one may take as long as a router needs to start."""
    end = time.monotonic() + START_S
    while True:
        try:
            status, answer = _ask(side.port, question)
        except (OSError, http.client.HTTPException) as error:
            said = repr(error)
        else:
            if status == 200:
                break
            said = f"{status} {answer[:300]!r}"
        if time.monotonic() > end:
            raise Missing(f"no answer to {question}: {said}")
        time.sleep(0.1)
    try:
        text = question.read(answer)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Missing(f"{question} was answered with {answer[-300:]!r}: {error!r}") from None
    if text != question.text:
        raise Missing(f"{question} was answered with the text {text!r}")


def _ask(port: int, question: Question) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("POST", question.path, question.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
