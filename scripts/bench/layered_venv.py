"""A virtual environment without packages of its own that sees those of several others, so that none of them is changed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from environment.checkout import CACHE


def packages_of(programs: Path) -> Path:
    """Where the environment with these `programs` keeps its packages."""
    (found,) = programs.parent.glob("lib/python3*/site-packages")
    return found


def layered_venv(name: str, *layers: Path) -> str:
    """Its interpreter; kept in the cache folder.

    Of a package that several `layers` have, the first one's is taken; the packages of this interpreter come before them all.
    """
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], stdin=subprocess.DEVNULL, check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    ours = Path(sysconfig.get_path("purelib"))
    # addsitedir, and not the bare folder: ours holds .pth files too, by which the checkout is found.
    lines = [f"import site; site.addsitedir({str(layer)!r})\n" for layer in (ours, *layers)]
    (site / "layers.pth").write_text("".join(lines))
    return str(python)
