"""What two checkouts are: their commits, the code that their environments run, and where the benchmark itself differs."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from environment.revision import revision

ROOTS: Final = ("scripts/bench", "scripts")
"""Where a benchmark's modules are found, in this order."""
CONFIGS: Final = "configs"
WHERE: Final = "import pegaflow.common as found; print(list(found.__path__)[0])"


def about(side: str, checkout: Path) -> dict[str, Any]:
    """A row of the table."""
    return {"side": side, "checkout": checkout.name, **revision(checkout)}


def foreign(checkout: Path) -> str:
    """Why its environment does not run its code; empty if it does, or if it is not made yet."""
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        return ""
    done = subprocess.run([python, "-P", "-c", WHERE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"the environment of {checkout.name} has no pegaflow"
    found = Path(done.stdout.strip()).resolve()
    return (
        "" if found.is_relative_to(checkout.resolve()) else f"the environment of {checkout.name} runs another checkout's pegaflow"
    )


def differing(old: Path, new: Path, name: str) -> list[str]:
    """Files of the benchmark `name` and of the configuration that are not the same in both, as paths within a checkout."""
    paths = {path for checkout in (old, new) for path in (*sources(checkout, name), *_configs(checkout))}
    return sorted(path for path in paths if _bytes(old / path) != _bytes(new / path))


def sources(checkout: Path, name: str) -> set[str]:
    """The benchmark's own files: what it imports from scripts, and what it names to start it as a process."""
    found: set[str] = set()
    left = [f"scripts/bench/{name}", f"scripts/bench/{name}.py"]
    while left:
        path = left.pop()
        if path.endswith("/*"):
            left += [str(each.relative_to(checkout)) for each in checkout.glob(f"{path}.py")]
        if path in found or not (checkout / path).is_file():
            continue
        found.add(path)
        if path.endswith(".py"):
            left += _named(path, (checkout / path).read_text(encoding="utf-8"))
    return found


def _named(path: str, text: str) -> Iterator[str]:
    """Paths of files that a module may mean; not all of them are there."""
    folder = path.rpartition("/")[0]
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                for each in names:
                    yield from _module(each.name)
            case ast.ImportFrom(module=module, names=names, level=0):
                for each in names:
                    yield from _module(f"{module}.{each.name}")
            case ast.ImportFrom(module=module, names=names, level=level):
                package = folder.split("/")[: len(folder.split("/")) - (level - 1)]
                for each in names:
                    yield from _files("/".join(package), [*(module or "").split("."), each.name])
            case ast.JoinedStr(values=[ast.Constant(value=str(value)), *_]) if value.endswith(".") and value[:-1].isidentifier():
                yield from (f"{root}/{value[:-1]}/*" for root in ROOTS)  # f"stalled.{part}": any module of it
            case ast.Constant(value=str(value)) if value.endswith(".py"):
                yield f"{folder}/{value}"
            case ast.Constant(value=str(value)) if "." in value and all(part.isidentifier() for part in value.split(".")):
                yield from _module(value)


def _module(name: str) -> Iterator[str]:
    for root in ROOTS:
        yield from _files(root, name.split("."))


def _files(root: str, parts: list[str]) -> Iterator[str]:
    """Each package on the way, and the module: the last part may be a name in it."""
    at = root
    for part in filter(None, parts):
        at = f"{at}/{part}"
        yield f"{at}.py"
        yield f"{at}/__init__.py"


def _configs(checkout: Path) -> Iterator[str]:
    for path in (checkout / CONFIGS).rglob("*"):
        if path.is_file():
            yield str(path.relative_to(checkout))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
