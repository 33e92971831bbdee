"""What the benchmark asks of the workers (`--worker-extension-cls`, called through /collective_rpc). Loaded in each worker."""

from __future__ import annotations

import cProfile
import os
import threading
import time

from engines.names import PROFILE_FILE

_profile: list[cProfile.Profile] = []


class WorkerProbe:
    """Mixed into vLLM's worker."""

    def bench_threads(self) -> dict[str, str]:
        """Native id → name of each Python thread."""
        return {str(thread.native_id): thread.name for thread in threading.enumerate()}

    def bench_profile(self) -> dict[str, str]:
        """Starts cProfile (CPU time) in the worker's main thread; the second call ends it and writes the file."""
        if not _profile:
            _profile.append(cProfile.Profile(time.thread_time))
            _profile[0].enable()
        else:
            _profile[0].disable()
            _profile[0].dump_stats(os.environ[PROFILE_FILE] + ".worker")
        return {}
