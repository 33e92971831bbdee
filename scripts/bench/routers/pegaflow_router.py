"""pegaflow-router in its three modes, with the options that it has by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from children import Children


def start_pegaflow_router(children: Children, port: int, backends: Sequence[int], *, first_token: bool = False) -> int:
    """Its pid. One backend: mixed; two: prefill and decode."""
    urls = [f"http://127.0.0.1:{backend}" for backend in backends]
    flags = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    flags += ["--engine", *urls] if len(urls) == 1 else ["--prefill", urls[0], "--decode", urls[1]]
    if first_token:
        flags.append("--pd-first-token")
    return children.spawn([sys.executable, "-m", "pegaflow.services.router", *flags], log=f"pegaflow-{port}.log").pid
