"""Where things lie in a checkout. All of it is ignored by git."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CONFIGS: Final = CHECKOUT / "configs"
VENV: Final = CHECKOUT / ".venv"
VENV_PYTHON: Final = VENV / "bin" / "python"
CACHE: Final = CHECKOUT / ".cache"
MODEL: Final = CACHE / "model" / "smollm2"
LINKS: Final = CHECKOUT / "build" / "src"
"""Holds pegaflow/{common,connector,services} as links: the layout that tools see which do not know setuptools' mapping."""
