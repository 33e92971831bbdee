"""The JSON of the inspection tool does not change by accident: every list command against tests/golden/cli.json.

A change that is meant: PEGAFLOW_GOLDEN=write pytest tests/golden/test_cli_json.py, then read the diff of cli.json. Fields may be
added; what is there keeps its name and its meaning.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from cli_samples import LISTINGS, OTHERS
from pegaflow.services.cli.__main__ import build, leaves
from pegaflow.services.cli.listing import Output
from pegaflow.services.cli.verdict import Cause

FILE = Path(__file__).with_name("cli.json")
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {match[1]: match[2] for match in re.finditer(r"^### `pegaflow ([\w -]+)`\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)}


def commands(*, listing: bool) -> list[str]:
    """Those that have `-o json`, or those that have not, without the program's name."""
    names = {leaf.prog.removeprefix("pegaflow "): leaf for leaf in leaves(build())}
    shows = {name: any(action.choices and "json" in action.choices for action in leaf._actions) for name, leaf in names.items()}
    return [name for name, shown in shows.items() if shown is listing]


def test_every_list_command_has_a_sample_and_every_command_a_section() -> None:
    if os.environ.get("PEGAFLOW_GOLDEN") == "write":
        shapes = {name: json.loads(listing.render(Output.JSON)) for name, listing in LISTINGS.items()}
        shapes |= json.loads(json.dumps(OTHERS))
        FILE.write_text(json.dumps(shapes, indent=1) + "\n", encoding="utf-8")
    assert sorted(LISTINGS) == sorted(commands(listing=True))
    assert sorted([*LISTINGS, *OTHERS]) == sorted(json.loads(FILE.read_text(encoding="utf-8")))
    assert {*commands(listing=True), *commands(listing=False)} <= set(SECTIONS)


@pytest.mark.parametrize("name", LISTINGS)
def test_the_json_of_a_command(name: str) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    assert json.loads(LISTINGS[name].render(Output.JSON)) == golden[name]


@pytest.mark.parametrize("name", OTHERS)
def test_the_json_that_is_no_listing(name: str) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(OTHERS[name])) == golden[name]


@pytest.mark.parametrize("name", OTHERS)
def test_its_fields_are_documented(name: str) -> None:
    """Those of a dump's services too: they stand in a table of their own."""
    tables = SECTIONS[name].split("| field | meaning |")[1:]
    documented = [set(re.findall(r"^\| `(\w+)` \|", one.split("\n\n")[0], re.MULTILINE)) for one in tables]
    shapes = [OTHERS[name], *([OTHERS[name][0]["services"]] if name == "dump" else [])]
    assert documented == [{field for one in shape for field in one} for shape in shapes]


@pytest.mark.parametrize("name", LISTINGS)
def test_every_field_is_documented(name: str) -> None:
    fields = SECTIONS[name].split("| field | column | meaning |")[1].split("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE)
    assert documented == [column.name for column in LISTINGS[name].columns]


def test_every_cause_is_documented() -> None:
    causes = SECTIONS["why"].split("| cause | meaning | what to do |")[1]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", causes, re.MULTILINE)))) == set(Cause)
