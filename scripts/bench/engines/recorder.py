"""vLLM's scheduler (`--scheduler-cls`), with a line of text for each step and each stage of a request. Loaded in the engine core.

    s start scheduled end prefill decode loading               a step that did something
    r request stage at                                         added, claimed, received, scheduled, first

Both sides of the benchmark run with it, so that its own cost (some 20 µs a step) is on both. PEGAFLOW_BENCH_STEPS names
the file. With PEGAFLOW_BENCH_PROFILE the engine core's main thread runs under cProfile, CPU time, saved there at the end.
"""

from __future__ import annotations

import cProfile
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from engines.names import PROFILE_FILE, STEPS_FILE


class StepRecorder(Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    """Only looks: what is scheduled is vLLM's decision."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._out = Path(os.environ[STEPS_FILE]).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 (lives as long)
        self._started = self._scheduled = 0.0
        self._loading = self._prefill = self._decode = 0
        self._claimed: set[str] = set()
        self._due: set[str] = set()
        self._profile = cProfile.Profile(time.thread_time) if PROFILE_FILE in os.environ else None
        self._profiling = False

    def add_request(self, request: Any) -> None:
        self._say(request.request_id, "added", time.monotonic())
        self._due.add(request.request_id)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._profile is not None and not self._profiling:
            self._profiling = True
            self._profile.enable()
        self._started = time.monotonic()
        output = super().schedule(*args, **kwargs)
        self._scheduled = time.monotonic()
        self._prefill = self._decode = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            # vLLM has advanced the count by now.
            computed = request.num_computed_tokens - tokens
            if computed < request.num_prompt_tokens:
                self._prefill += tokens
            else:
                self._decode += 1
            if request_id in self._due:
                self._say(request_id, "scheduled", self._started)
        waiting = {
            request_id
            for request_id in self._due
            if (due := self.requests.get(request_id)) is not None and due.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        }
        for request_id in waiting - self._claimed:
            self._say(request_id, "claimed", self._scheduled)
        self._claimed |= waiting
        self._loading = len(waiting)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        said = model_runner_output.kv_connector_output
        if said is not None:
            for request_id in said.finished_recving or ():
                self._say(request_id, "received", time.monotonic())
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        end = time.monotonic()
        if scheduler_output.total_num_scheduled_tokens:
            times = f"{self._started:.6f} {self._scheduled:.6f} {end:.6f}"
            self._out.write(f"s {times} {self._prefill} {self._decode} {self._loading}\n")
            for each in outputs.values():
                for output in each.outputs:
                    if output.new_token_ids and output.request_id in self._due:
                        self._due.discard(output.request_id)
                        self._claimed.discard(output.request_id)
                        self._say(output.request_id, "first", end)
        return outputs

    def shutdown(self) -> None:
        super().shutdown()
        if self._profile is not None and self._profiling:
            self._profile.disable()
            self._profile.dump_stats(os.environ[PROFILE_FILE])
        self._out.close()

    def _say(self, request_id: str, stage: str, at: float) -> None:
        self._out.write(f"r {request_id} {stage} {at:.6f}\n")
