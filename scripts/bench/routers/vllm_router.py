"""The PyPI package vllm-router (Rust), mixed and as it splits requests over prefill and decode engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from children import Children, free_port
from private_venv import private_venv

PACKAGE: Final = "vllm-router==0.1.17"
# The cheapest policy, no log of requests.
_FLAGS: Final = ("--policy", "round_robin", "--log-level", "error", "--worker-startup-check-interval", "1")


def start_vllm_router(children: Children, port: int, backends: Sequence[int]) -> int:
    """Its pid. One backend: mixed; two: prefill and decode. Raises Missing."""
    urls = [f"http://127.0.0.1:{backend}" for backend in backends]
    program = private_venv("vllm-router", PACKAGE) / "vllm-router"
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    if len(urls) == 1:
        where += ["--worker-urls", *urls]
    else:
        where += ["--vllm-pd-disaggregation", "--prefill", urls[0], "--decode", urls[1]]
    return children.spawn([str(program), *where, *_FLAGS], log=f"vllm-router-{len(urls)}.log").pid
