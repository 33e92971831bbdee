"""docs/scaling.md says what goes into the simulation: the same as the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from environment.checkout import CHECKOUT
from simulation.cluster import Setup
from simulation.figures import Hardware, Load, Model
from simulation.studies import STUDIES

NODES = [8, 32, 64, 128, 512]
NOT_A_FIGURE = "what an event costs a core"
PAGES_256 = ", pages of 256 tokens"


def tables() -> Iterator[list[list[str]]]:
    """Every table of the document as rows of cells, without the line under its head."""
    text = (CHECKOUT / "docs" / "scaling.md").read_text(encoding="utf-8")
    for found in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
        yield [row for row in rows if set("".join(row)) - set("-")]


def table(*head: str) -> list[list[str]]:
    [found] = [rows[1:] for rows in tables() if rows[0] == list(head)]
    return found


def numbers(cell: str) -> list[float]:
    """But for the 2 of a U.2."""
    return [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", cell)]


def test_what_goes_in_is_what_the_code_has() -> None:
    hardware, model, load, setup = Hardware(), Model(), Load(), Setup()
    pool = setup.pool_pages * model.page_bytes
    code = {
        "bytes of a page": [model.page_bytes, model.block],
        "prefill": [model.prefill],
        "decode": [1 / model.tpot],
        "step": [model.step_tokens],
        "prompt, answer": [load.prompt, load.output, load.system, load.user, load.turns],
        "load": [load.utilisation * 100, load.reuse * 100],
        "network card": [hardware.nic * 8 / 1e9],
        "READ": [hardware.read_latency * 1e6],
        "message, node to node": [hardware.wire * 1e6],
        "message inside a node": [hardware.hop * 1e6],
        "device ↔ pool": [hardware.copy / 1e9],
        "checksum": [hardware.hash / 1e9],
        "disk": [hardware.disk_read / 8 / 1e9, hardware.disk_write / 8 / 1e9],
        "pool": [setup.pool_pages, pool / 1e9],
    }
    document = {name: numbers(value) for name, value, _ in table("figure", "value", "from") if name != NOT_A_FIGURE}
    assert document.keys() == code.keys()
    for name, values in code.items():
        assert document[name] == pytest.approx(values, rel=2e-3), name


def test_what_each_table_was_run_with_is_what_its_study_does() -> None:
    document = set()
    for study, nodes, grains, seconds in table("rows of", "nodes", "pages as one", "seconds that count"):
        document |= {(study, n, g, s) for n in numbers(nodes) for g in numbers(grains) for s in numbers(seconds)}
    code = set()
    for study, cases in STUDIES.items():
        base = Setup(seconds=24.0, warm=16.0) if study == "levels" else Setup(seconds=4.0, warm=2.0)
        for _, setup in cases(base, NODES):
            name = study + (PAGES_256 if setup.model.block == 256 else "")
            code.add((name, float(setup.nodes), float(setup.grain), round(setup.seconds - setup.warm, 3)))
    assert document == code
