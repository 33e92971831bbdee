"""Every command of the tool, what it exits with in which condition, and a runner for many of them at once.

In this process, through the tool's main(): a command costs milliseconds so, and what it waits for it waits for beside the others.
What it costs as a process, other tests see.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pegaflow.services.cli import __main__ as tool

HANGS_S = 30.0
"""Far beyond every --timeout here: whoever takes that long hangs."""
AT_ONCE = 10
PARSER = tool.build()
"""Building it is most of what a command costs here."""
_ports = itertools.count(33_000)


class Row(NamedTuple):
    """A command and its exit codes: all healthy; tier b stopped; the metaserver dead; nobody lets us in; nobody lets our role.

    In `line` {key} stands for a saved page, {tokens} for a file of token ids, {secret} for a key file, {new} for a path that is
    free, {port} for a fresh number. `only_b`: at tier b only; else everybody, and an engine command at the router.
    """

    line: str
    healthy: int
    stopped: int
    dead: int
    barred: int
    role: int
    only_b: bool = False

    @property
    def words(self) -> list[str]:
        return self.line.split()


TABLE = (
    Row("status", 0, 1, 1, 1, 1),
    Row("nodes", 0, 1, 1, 1, 1),
    Row("fingerprints", 0, 1, 1, 1, 1),
    Row("ping -n 1", 0, 1, 1, 1, 1),
    Row("check ping -w 20s -c 30s", 0, 2, 2, 3, 3),
    Row("check latency -w 20s -c 30s", 0, 2, 2, 3, 3),
    Row("check latency -w 1us -c 30s", 1, 2, 2, 3, 3),
    Row("check sync", 0, 2, 2, 3, 3),
    Row("check capacity", 0, 3, 3, 3, 3),
    Row("why r", 0, 1, 1, 1, 1),
    Row("why nobody", 1, 1, 1, 1, 1),
    Row("why --tokens {tokens}", 0, 1, 1, 1, 1),
    Row("page show {key}", 0, 1, 1, 1, 1),
    Row("page show 00", 2, 1, 1, 1, 1),
    Row("page show 0011", 1, 1, 1, 1, 1),
    Row("page find --tokens {tokens}", 0, 1, 1, 1, 1),
    Row("sessions", 0, 1, 1, 1, 1),
    Row("leases", 0, 1, 1, 1, 1),
    Row("intents", 0, 1, 1, 1, 1),
    Row("catalogue digest", 0, 1, 1, 1, 1),
    Row("catalogue diff", 0, 1, 1, 1, 1),
    Row("catalogue resync a", 2, 2, 2, 2, 2),
    Row("catalogue resync a --yes", 0, 1, 1, 1, 1),
    Row("top -n 1 --every 100ms", 0, 1, 1, 1, 1),
    Row("monitor -n 1 --for 20s", 0, 0, 0, 1, 1),
    Row("bench -n 20", 0, 1, 1, 1, 1),
    Row("node show a", 0, 1, 1, 1, 1),
    Row("node show nobody", 1, 1, 1, 1, 1),
    Row("node drain nobody --yes", 1, 1, 1, 1, 1),
    Row("node undrain a", 2, 2, 2, 2, 2),
    Row("node undrain nobody --yes", 1, 1, 1, 1, 1),
    Row("engine list", 0, 0, 0, 1, 1),
    Row("engine add engine http://127.0.0.1:{port} --yes", 0, 0, 0, 1, 1),
    Row("engine add engine http://127.0.0.1:{port}", 2, 2, 2, 2, 2),
    Row("engine remove engine http://127.0.0.1:1 --yes", 1, 1, 1, 1, 1),
    Row("send ping", 0, 1, 0, 1, 0, only_b=True),
    Row("send status", 0, 1, 0, 1, 1, only_b=True),
    Row("send drain", 2, 2, 2, 2, 2, only_b=True),
    Row("config check", 0, 0, 0, 0, 0),
    Row("config show", 0, 0, 0, 0, 0),
    Row("config show --running --changed", 0, 1, 1, 1, 1),
    Row("keys gen {new} --role operator", 0, 0, 0, 0, 0),
    Row("keys show {secret} --role operator", 0, 0, 0, 0, 0),
    Row("dump -o -", 0, 1, 1, 1, 1),
    Row("doctor", 0, 1, 1, 1, 1),
    Row("completion bash", 0, 0, 0, 0, 0),
)


class Leaf(NamedTuple):
    """What a command takes: `option` with its values, empty if it has one output only."""

    option: str
    outputs: tuple[str, ...]
    asks: bool
    has_config: bool


def _leaves() -> dict[str, Leaf]:
    """By its words, as `node show`."""
    found = {}
    for parser in tool.leaves(PARSER):
        shows = [action for action in parser._actions if action.dest in ("output", "format") and action.choices]
        flags = {flag for action in parser._actions for flag in action.option_strings}
        option = "" if not shows else "-o" if "-o" in shows[0].option_strings else shows[0].option_strings[0]
        values = tuple(map(str, shows[0].choices or ())) if shows else ("",)
        found[parser.prog.removeprefix("pegaflow ")] = Leaf(option, values, "--curve-key-file" in flags, "--config" in flags)
    return found


LEAVES = _leaves()


def leaf_of(row: Row) -> Leaf:
    return LEAVES[name_of(row)]


def name_of(row: Row) -> str:
    words = row.words
    return " ".join(words[:2]) if " ".join(words[:2]) in LEAVES else words[0]


class Place(NamedTuple):
    """Where to look. `more`: options for every command that asks, such as the key to come in with."""

    everybody: str
    b: str
    router: str
    more: str = ""


class Ended(NamedTuple):
    """One command that ran."""

    row: Row
    output: str
    line: str
    code: int
    out: str
    error: str
    took_s: float

    @property
    def shown(self) -> str:
        return f"{self.line}: {self.code}\n{self.out}{self.error}"


class _Apart(io.TextIOBase):
    """Standard output, or error, of commands that run in threads: each has its own."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def begin(self) -> io.StringIO:
        text = self._mine.text = io.StringIO()
        return text

    def write(self, text: str) -> int:
        return int(self._mine.text.write(text))


@contextmanager
def _streams() -> Iterator[tuple[_Apart, _Apart]]:
    before, mine = (sys.stdout, sys.stderr), (_Apart(), _Apart())
    sys.stdout, sys.stderr = mine
    try:
        yield mine
    finally:
        sys.stdout, sys.stderr = before


def lines(
    rows: Sequence[Row], place: Place, values: Mapping[str, str], timeout: Callable[[Row], str], first: bool
) -> list[tuple[Row, str, str]]:
    """Row, output and command line of each. `first`: of each row one output only."""
    found = []
    for row in rows:
        leaf = leaf_of(row)
        for output in leaf.outputs[:1] if first else leaf.outputs:
            new = Path(values["folder"]) / f"new-{next(_ports)}"
            line = row.line.format(**values, new=new, port=next(_ports))
            if leaf.asks:
                where = place.router if row.words[0] == "engine" else place.b if row.only_b else place.everybody
                line += f" {where} --timeout {timeout(row)}"
            if leaf.asks or leaf.has_config:
                line += f" {place.more}"
            found.append((row, output, f"{line} {leaf.option} {output}".strip()))
    return found


def run(
    rows: Sequence[Row],
    place: Place,
    values: Mapping[str, str],
    timeout: Callable[[Row], str] = lambda _: "20s",
    first: bool = False,
) -> list[Ended]:
    """All of them, each in every output that it has, some at once."""
    return _run(lines(rows, place, values, timeout, first))


def again(ended: Sequence[Ended], timeout: str) -> list[Ended]:
    """The same commands with more time."""
    return _run([(one.row, one.output, re.sub(r"--timeout \S+", f"--timeout {timeout}", one.line)) for one in ended])


def _run(cases: Sequence[tuple[Row, str, str]]) -> list[Ended]:
    def one(case: tuple[Row, str, str]) -> Ended:
        row, output, line = case
        out, error = (stream.begin() for stream in streams)
        begun = time.monotonic()
        try:
            code = tool.main(shlex.split(line))
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(row, output, line, code, out.getvalue(), error.getvalue(), time.monotonic() - begun)

    with _streams() as streams, patch.object(tool, "build", lambda: PARSER), ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, cases))


def complaints(ended: Sequence[Ended], codes: Mapping[Row, int]) -> list[str]:
    """What no command may do, and exit codes that are not those of `codes`."""
    found = []
    for one in ended:
        if one.code != codes[one.row]:
            found.append(f"expected {codes[one.row]}: {one.shown}")
        if "Traceback" in one.error + one.out or "internal:" in one.error:
            found.append(f"a trace: {one.shown}")
        if one.took_s > HANGS_S:
            found.append(f"{one.took_s:.0f} s: {one.shown}")
        if leaf_of(one.row).option and one.code == 0 and not one.out and one.output != "jsonl":
            found.append(f"said nothing: {one.shown}")
        if one.code != 0 and not one.error and leaf_of(one.row).option != "--format":
            found.append(f"no reason: {one.shown}")
        if wrong := _unclean(one):
            found.append(f"{wrong}: {one.shown}")
    return found


def _unclean(one: Ended) -> str:
    """Why standard output is not the data that was asked for; empty: it is."""
    try:
        if one.output == "json" and one.out and set(json.loads(one.out)) != {"rows", "wrong"}:
            return "another document"
        if one.output == "jsonl":
            [json.loads(part) for part in one.out.splitlines()]
    except ValueError as wrong:
        return f"no JSON ({wrong})"
    if one.output == "nagios" and one.out and (len(one.out.splitlines()) != 1 or not one.out.startswith("PEGAFLOW ")):
        return "more than a line for nagios"
    if one.output == "prometheus" and not all(part.startswith(("# ", "pegaflow_check_")) for part in one.out.splitlines()):
        return "no metrics"
    return "talk among the data" if one.out.startswith("pegaflow ") else ""
