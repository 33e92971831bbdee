"""scripts/setup: see there."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from environment import levels, model, preflight, system
from environment.checkout import CACHE, CHECKOUT, MODEL, VENV, VENV_PYTHON
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.install import LOG, install, link_sources, make_venv
from environment.levels import Level
from environment.progress import say, step


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/setup", description="make .venv (and the model) in this checkout")
    parser.add_argument("level", nargs="?", type=Level, choices=list(Level), default=Level.FULL)
    level = parser.parse_args().level
    try:
        set_up(level)
    except Complaint as complaint:
        print(f"setup: {complaint}", file=sys.stderr)
        return EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("setup: interrupted; the next call goes on", file=sys.stderr)
        return 130
    return 0


def set_up(level: Level) -> None:
    """Everything that `level` lacks; nothing, quickly, when it lacks nothing. Raises Complaint."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with step("wait for another set-up of this checkout"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        link_sources()
        if not levels.is_done(level):
            say(f"set up {CHECKOUT / '.venv'} ({level})")
            preflight.check_machine(level)
            make_venv()
            if level is Level.FULL:
                preflight.check_torch(VENV_PYTHON)
            levels.mark_begun()
            install(level)
            levels.mark_done(level)
        system.install_programs()
        if level is Level.FULL and not model.is_converted():
            preflight.check_memory(preflight.MEMORY_BYTES[level])
            with step("convert the model SmolLM2-135M-Instruct"):
                convert_model()


def convert_model() -> None:
    log = VENV / LOG
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with log.open("ab") as stream:
        failed = subprocess.run(
            [VENV_PYTHON, "-m", "environment.model"], env=environment, stdout=stream, stderr=subprocess.STDOUT, check=False
        ).returncode
    if failed or not model.is_converted():
        tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise Complaint("conversion_failed", f"no model in {MODEL}; the end of {log}:\n    {tail}")


if __name__ == "__main__":
    sys.exit(main())
