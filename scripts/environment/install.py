"""Makes the virtual environment and fills it with the pinned packages and this project."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from environment.checkout import CHECKOUT, LINKS, VENV, VENV_PYTHON
from environment.complaint import Complaint
from environment.levels import Level
from environment.progress import step

LOG = "setup.log"
"""In .venv: what pip said. On failure its end is shown."""


def make_venv() -> None:
    """A .venv with pip for this interpreter; one of another Python version is replaced."""
    if VENV_PYTHON.exists() and _version(VENV_PYTHON) == _version(Path(sys.executable)):
        return
    with step(f"make .venv with Python {sys.version.split()[0]}"):
        shutil.rmtree(VENV, ignore_errors=True)
        has_ensurepip = importlib.util.find_spec("ensurepip") is not None
        venv.create(VENV, with_pip=has_ensurepip, symlinks=True)
        if not has_ensurepip:  # Debian splits it off; the system's pip can fill in
            _run([sys.executable, "-m", "pip", "--python", str(VENV_PYTHON), "install", "pip"], "pip for .venv")


def install(level: Level) -> None:
    """All packages of `level` and, editable, the project itself."""
    files = [argument for path in level.requirement_files for argument in ("-r", str(path))]
    pip = [str(VENV_PYTHON), "-m", "pip"]
    with step(f"install the pinned packages ({level})"):
        # --no-deps: the files are complete, see their heads.
        _run([*pip, "install", "--no-deps", *files], "pip install")
    with step("install the project, editable"):
        _run([*pip, "install", "--no-deps", "--no-build-isolation", "--editable", str(CHECKOUT)], "pip install")


def link_sources() -> None:
    """build/src/pegaflow/… as links to the folders: mypy and import-linter do not see setuptools' package-dir."""
    package = LINKS / "pegaflow"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("common", "connector", "services"):
        link = package / name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(CHECKOUT / name, package))


def _version(python: Path) -> str:
    code = "import sys; print(sys.version)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout


def _run(command: Sequence[str], what: str) -> None:
    """Raises Complaint with the end of the log when `command` fails."""
    log = VENV / LOG
    with log.open("ab") as stream:
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        failed = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    if failed:
        tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise Complaint("install_failed", f"{what} ended with {failed}; the end of {log}:\n    {tail}")
