"""The scripts that start benchmarks: each finds the modules that its program imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = sorted(path.stem for path in (SCRIPTS / "bench").glob("*.py") if path.with_suffix("").is_file())
PATH = 'PYTHONPATH="$checkout/scripts:$checkout/scripts/bench" exec '


@pytest.mark.parametrize("name", NAMES)
def test_a_program_starts_with_the_path_that_its_launcher_gives_it(name: str) -> None:
    *_, last = (SCRIPTS / "bench" / name).read_text(encoding="utf-8").splitlines()
    assert last.startswith(PATH) and f"/scripts/bench/{name}.py" in last
    environment = os.environ | {"PYTHONPATH": f"{SCRIPTS}{os.pathsep}{SCRIPTS / 'bench'}"}
    program = SCRIPTS / "bench" / f"{name}.py"
    done = subprocess.run([sys.executable, program, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "usage:" in done.stdout) == (0, True), done.stderr
