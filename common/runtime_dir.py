"""Where the processes of one node meet when nobody says otherwise."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_runtime_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_RUNTIME_DIR/pegaflow`, else a folder per user among the temporary files."""
    base = environ.get("XDG_RUNTIME_DIR")
    return Path(base, "pegaflow") if base else Path(tempfile.gettempdir(), f"pegaflow-{os.getuid()}")
