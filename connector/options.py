"""The connector's options: `pegaflow.*` in vLLM's `kv_connector_extra_config`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pegaflow.common.runtime_dir import default_runtime_dir

PREFIX = "pegaflow."

Choice = TypeVar("Choice", bound=StrEnum)


class StartRefused(ValueError):
    """vLLM must not start like this. `code` is stable; the text says what to change."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Mode(StrEnum):
    READ_WRITE = "read_write"
    READ = "read"
    WRITE_ONLY = "write_only"


class Decode(StrEnum):
    RECOMPUTE = "recompute"
    STRICT = "strict"


class OnReset(StrEnum):
    """What vLLM's `reset_prefix_cache(reset_connector=True)` means: a change of weights, or nothing that concerns the tier."""

    ISOLATE = "isolate"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Options:
    """Times in milliseconds, as they are written."""

    tier: str
    runtime_dir: Path
    mode: Mode = Mode.READ_WRITE
    pd_tail_save: bool = False
    pd_tail_load: bool = False
    decode: Decode = Decode.RECOMPUTE
    wait_ms: int = 5000
    request_timeout_ms: int = 2000
    on_reset: OnReset = OnReset.ISOLATE
    curve_key_file: Path | None = None

    @property
    def saves(self) -> bool:
        return self.mode is not Mode.READ

    @property
    def loads(self) -> bool:
        return self.mode is not Mode.WRITE_ONLY

    @property
    def strict(self) -> bool:
        return self.decode is Decode.STRICT


NAMES = tuple(PREFIX + field.name for field in fields(Options))


def parse_options(extra: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Options:
    """Options from `kv_connector_extra_config`. Entries that are not ours are left alone. Raises StartRefused."""
    given: dict[str, Any] = {}
    for name, value in extra.items():
        if name in NAMES:
            given[name.removeprefix(PREFIX)] = value
        elif name.lower().startswith("pegaflow"):
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
            raise StartRefused("unknown_option", f"{name} is not an option; the nearest is {near}")
    parsers: dict[str, Callable[[str, Any], Any]] = {
        "tier": _endpoint,
        "runtime_dir": _path,
        "mode": lambda name, value: _choice(Mode, name, value),
        "pd_tail_save": _flag,
        "pd_tail_load": _flag,
        "decode": lambda name, value: _choice(Decode, name, value),
        "wait_ms": _milliseconds,
        "request_timeout_ms": _milliseconds,
        "curve_key_file": _path,
        "on_reset": lambda name, value: _choice(OnReset, name, value),
    }
    values = {name: parsers[name](PREFIX + name, value) for name, value in given.items()}
    runtime_dir = values.setdefault("runtime_dir", default_runtime_dir(os.environ if environ is None else environ))
    values.setdefault("tier", f"ipc://{runtime_dir}/requests.sock")
    return Options(**values)


def _choice(kind: type[Choice], name: str, value: Any) -> Choice:
    try:
        return kind(str(value).strip().lower())
    except ValueError:
        raise StartRefused("bad_option", f"{name} is {value!r}; it is one of {', '.join(kind)}") from None


def _flag(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise StartRefused("bad_option", f"{name} is {value!r}; it is true or false")
    return text == "true"


def _milliseconds(name: str, value: Any) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        number = 0
    if number <= 0:
        raise StartRefused("bad_option", f"{name} is {value!r}; it is a whole number of milliseconds above 0")
    return number


def _endpoint(name: str, value: Any) -> str:
    text = str(value).strip()
    if not text.startswith(("ipc://", "tcp://")):
        raise StartRefused("bad_option", f"{name} is {value!r}; it is an endpoint: ipc://PATH or tcp://HOST:PORT")
    return text


def _path(name: str, value: Any) -> Path:
    path = Path(str(value).strip())
    if not path.is_absolute():
        raise StartRefused("bad_option", f"{name} is {value!r}; it is an absolute path")
    return path
