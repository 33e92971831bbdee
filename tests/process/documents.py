"""The shell blocks of README and docs, and what can be said of them without running them.

    ```sh              is run as it stands, from the checkout's root, and ends with 0
    ```sh exit=1       the same, and ends with 1
    ```sh hardware     needs hardware or other machines
    ```sh minutes      takes minutes, and CI runs it by itself
    any other label, or none: no commands

Of the middle two: every command of ours exists, and so does each of its options.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pegaflow.common.config import load
from pegaflow.connector.options import StartRefused, parse_options
from pegaflow.services.cli.__main__ import build
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.watch.config import WatchConfig

ROOT = Path(__file__).resolve().parents[2]
SERVICES: Mapping[str, type[Any]] = {
    "tier": TierConfig,
    "metaserver": MetaserverConfig,
    "router": RouterConfig,
    "watch": WatchConfig,
}
COMMAND = re.compile(
    r"\s*(?:\$ )?(?:pegaflow(?:-\w+)?|scripts/\S+|\.?/?\.venv/\S+|pip|vllm|curl|supervisorctl|systemctl)(?:\s|$)"
)
FENCE = re.compile(r"^\s*```(.*)$")
ASSIGNMENT = re.compile(r"\w+=\S*")


class Block(NamedTuple):
    """A fenced block; `line` is that of its first line, `label` what stands behind the fence."""

    document: str
    line: int
    label: str
    text: str

    @property
    def code(self) -> int | None:
        """The exit code it promises; None: it is not run."""
        match self.label.split():
            case ["sh"]:
                return 0
            case ["sh", word] if re.fullmatch(r"exit=\d+", word):
                return int(word.removeprefix("exit="))
        return None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: str, text: str) -> list[Block]:
    found, label, first, lines = [], None, 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif label is None:
            label, first, lines = fence[1].strip(), number + 1, []
        else:
            found.append(Block(document, first, label, "\n".join(lines)))
            label = None
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command of a shell block, without assignments before it and redirections behind it."""
    lexer = shlex.shlex("".join(_told(text)), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|()"):
            while words and ASSIGNMENT.fullmatch(words[0]):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)


def _told(text: str) -> Iterator[str]:
    """Without comments; the end of a line ends a command, but not within quotes."""
    for found in re.finditer(r"""'[^']*'|"(?:\\.|[^"\\])*"|(?<!\S)\#[^\n]*|\\\n|.""", text, re.DOTALL):
        piece = found[0]
        yield "" if piece[0] == "#" and len(piece) > 1 else {"\\\n": " ", "\n": " ; "}.get(piece, piece)


def complaints(block: Block) -> list[str]:
    """What is wrong with a block that is not run."""
    kind = block.label.split()
    if block.code is None and kind[:1] == ["sh"] and kind not in (["sh", "hardware"], ["sh", "minutes"]):
        return [f"{block}: no such label: {block.label}"]
    if kind[:1] != ["sh"]:
        return [
            f"{block}: a command in a block that is not labelled sh: {line}"
            for line in block.text.splitlines()
            if COMMAND.match(line)
        ]
    return [f"{block}: {text}" for words in commands(block.text) for text in _judged(words)]


def mentions(document: str, text: str) -> list[str]:
    """What is wrong with commands within a sentence or table."""
    spans = [span for span in re.findall(r"`(pegaflow(?:-\w+)? [^`\n]+)`", text) if not re.search(r"\||COMMAND|<", span)]
    return [f"{document}: `{span}`: {text}" for span in spans for words in commands(span) for text in _judged(words)]


def _judged(words: list[str]) -> Iterator[str]:
    name, *rest = words
    options = [word.partition("=")[0] for word in rest if word.startswith("-") and word not in ("-", "--")]
    if name == "pegaflow":
        known = _of_tool(rest)
        yield from _unknown(name, options, known) if known else [f"no command {' '.join(words)}"]
    elif name.startswith("pegaflow-"):
        service = name.removeprefix("pegaflow-")
        yield from _unknown(name, options, _of_service(service)) if service in SERVICES else [f"no command {name}"]
    elif name.startswith("scripts/"):
        if not (ROOT / name).is_file():
            yield f"no {name}"
        else:
            yield from _unknown(name, options, _of_script(name))
    elif name == "vllm":
        yield from _connector(rest)
    for word in rest:
        if re.match(r"(tests|scripts|configs)/", word) and not (ROOT / word).exists():
            yield f"no {word}"


def _unknown(name: str, options: list[str], known: frozenset[str]) -> Iterator[str]:
    for option in options:
        if option not in known:
            yield f"{name} has no {option}"


def _of_tool(words: list[str]) -> frozenset[str]:
    """Options of a command and of those above it; of one that does not exist there are none."""
    parser, known = _tool(), set[str]()
    below = [word for word in words if not word.startswith("-")]
    while True:
        known |= parser._option_string_actions.keys()
        deeper = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not deeper:
            return frozenset(known)
        if not below:
            return frozenset(known)
        if below[0] not in deeper[0].choices:
            return frozenset()
        parser = deeper[0].choices[below.pop(0)]


@cache
def _tool() -> argparse.ArgumentParser:
    return build()


@cache
def _of_service(service: str) -> frozenset[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        load(SERVICES[service], section=service, prog=service, description="", argv=["--help"], environ={})
    own = (ROOT / "services" / service / "__main__.py").read_text()  # what is not an option of the configuration
    return frozenset(re.findall(r"--[a-z][\w-]*|-h\b", out.getvalue() + own))


@cache
def _of_script(name: str) -> frozenset[str]:
    """Options that a script, or the Python program that it runs, takes."""
    script = ROOT / name
    text = script.read_text()
    programs = [script.with_suffix(".py"), ROOT / "scripts" / (re.findall(r"-m (\w+)\b", text) or [""])[0] / "__main__.py"]
    parsed = "".join(path.read_text() for path in programs if path.is_file())
    taken = re.findall(r'add_argument\(\s*"(-[\w-]+)"(?:, "(-[\w-]+)")?', parsed)
    return frozenset({option for pair in taken for option in pair if option} | set(re.findall(r'" (--\w+) "', text)) | {"--help"})


def _connector(words: list[str]) -> Iterator[str]:
    """The connector's own options in the JSON that vLLM is given."""
    for flag, value in pairwise(words):
        if flag == "--kv-transfer-config":
            try:
                parse_options(json.loads(value).get("kv_connector_extra_config", {}), {})
            except (ValueError, StartRefused) as error:
                yield f"{flag}: {error}"
