"""What both the benchmark and the engine core have to call by the same names; without vLLM's imports."""

SCHEDULER = "engines.recorder.StepRecorder"
PROBE = "engines.extension.WorkerProbe"
STEPS_FILE = "PEGAFLOW_BENCH_STEPS"
PROFILE_FILE = "PEGAFLOW_BENCH_PROFILE"
