"""How engines compute that are busy at the same time on the same cores."""

from __future__ import annotations

from typing import Final

ONE_THREAD: Final = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""By itself vLLM would bind every engine to the same cores, and to another number of them with a connector; threads that wait for
each other there spin."""
SETTING: Final = {
    "setting": "threads of an engine",
    "value": ", ".join(f"{name}={value}" for name, value in ONE_THREAD.items()),
}
"""A row of a benchmark's settings."""
