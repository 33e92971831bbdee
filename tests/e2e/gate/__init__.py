"""Real vLLM engines for tests, a few seconds each: see `engine.py` for the test's side and `served.py` for the engine's."""
