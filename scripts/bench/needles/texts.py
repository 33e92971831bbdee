"""English text that every Python has: the standard library's manual and docstrings, read as files and never imported."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MANUAL: Final = "pydoc_data/topics.py"
MODULES: Final = (
    "argparse", "calendar", "configparser", "difflib", "fractions", "functools", "heapq", "inspect", "ipaddress", "random",
    "shutil", "statistics", "tarfile", "tempfile", "textwrap", "doctest", "ftplib", "gettext", "imaplib", "mailbox", "os",
    "queue", "smtplib", "socket", "socketserver", "ssl", "subprocess", "threading", "timeit", "traceback", "typing", "uuid",
)  # fmt: skip
"""One file each, from 3.11 on."""


class Doc(NamedTuple):
    """`name` as one would import it, `text` on one line."""

    name: str
    text: str


def manual() -> str:
    """Some 100,000 words of prose. Raises OSError where Python came without it."""
    return manual_of(_read(MANUAL))


def docs() -> list[Doc]:
    """Docstrings of public functions, classes and methods, in the order of MODULES and of the files. Raises OSError."""
    return [doc for module in MODULES for doc in docs_of(module, _read(f"{module}.py"))]


def manual_of(source: str) -> str:
    """The texts of `topics`, a dict of constant strings, in the order of their names."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["topics"]:
            topics: dict[str, str] = ast.literal_eval(node.value)
            return _flat(" ".join(topics[name] for name in sorted(topics)))
    raise ValueError("no topics")


def docs_of(module: str, source: str) -> list[Doc]:
    return list(_docs(module, ast.parse(source).body))


def _docs(prefix: str, body: list[ast.stmt]) -> Iterator[Doc]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            if text := ast.get_docstring(node):
                yield Doc(name, _flat(text))
            if isinstance(node, ast.ClassDef):
                yield from _docs(name, node.body)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _read(name: str) -> str:
    return (Path(sysconfig.get_path("stdlib")) / name).read_text(encoding="utf-8")
