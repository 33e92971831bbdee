"""How fast a tier is, end to end as its clients see it, beside Mooncake Store and the bare disk in the same run.

    scripts/bench/tier [--quick] [--rounds 5] [--only transfer|clients|disk] [--no-mooncake] [--disk-dir DIR]
                       [--json FILE] [--svg FOLDER]

NOTE: clients, tiers, movers and Mooncake share this machine's cores (two here). Ratios are taken within a round, of things
measured seconds apart; absolute figures are not comparable between machines or runs.

transfer   put and get of 64 KiB to 4 MiB pages between processes: within a node, over the mover (UCX as it chooses, and TCP),
           and through Mooncake Store over loopback TCP (tiers/transfer.py). Each goal names the transports of both sides
clients    pages sealed, evicted and fetched per second with 1 to 8 clients (tiers/scaling.py)
disk       pages written to the disk level and read back, beside dd of the same sizes (tiers/disk.py)

A client is a process with everything that a rank inside vLLM has except vLLM; all tiers are real processes. Every page that is
got is compared with what was put, outside the measured time.

Exit codes: 0 all goals are met, 3 one is missed or Mooncake is left out though --no-mooncake does not say so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Final

from children import Children
from drawn import Bars, draw_bars
from private_venv import Missing
from report import Goal, ended, show
from report import left_out as left_out_rows
from tiers.disk import disk
from tiers.mooncakes import NOT_COMPARED, Mooncakes
from tiers.rows import ON_DISK, SCALED, TRANSFERRED, disk_row, left_out, scaling_row, transfer_row
from tiers.scaling import scaling
from tiers.transfer import transfer_goals, transfers
from tiers.yardstick import Yardstick

from charts.lines import Axis
from environment.checkout import CACHE

KIB, MIB = 1 << 10, 1 << 20
TRANSFER_PAGES: Final = (64 * KIB, 256 * KIB, MIB, 4 * MIB)
CLIENT_PAGES: Final = (64 * KIB, MIB)
DISK_PAGES: Final = (64 * KIB, 256 * KIB, MIB, 4 * MIB)
CLIENTS: Final = (1, 2, 4, 8)
TRANSFER_BYTES, CLIENT_BYTES = 64 * MIB, 128 * MIB
PARTS: Final = ("transfer", "clients", "disk")
GB_S, PAGES_S = Axis("GB/s", log=True), Axis("pages/s", log=True)
CHARTS: Final = (
    Bars(
        "tier_transfer",
        "Put and get of pages between processes",
        GB_S,
        ["put/get page_KiB"],
        [f"{way} GB/s" for way in TRANSFERRED],
    ),
    Bars(
        "tier_clients",
        "Pages sealed, evicted and fetched",
        PAGES_S,
        ["clients", "page_KiB"],
        [f"{way} pages/s" for way in SCALED],
    ),
    Bars("tier_disk", "The disk level beside the bare disk", GB_S, ["disk page_KiB"], [f"{way} GB/s" for way in ON_DISK]),
)

Rows = list[dict[str, Any]]


def transfer_rows(
    pages: tuple[int, ...], rounds: int, mooncake: bool, seeds: itertools.count[int]
) -> tuple[Rows, Rows, list[Goal]]:
    """Rows, what there is to say about the peer, goals."""
    rows: Rows = []
    goals: list[Goal] = []
    with Children() as children:
        mooncakes, why = None, "--no-mooncake"
        if mooncake:
            try:
                mooncakes = Mooncakes.start(children, TRANSFER_BYTES, seeds)
            except Missing as missing:
                why = str(missing)
                print(f"Mooncake is left out: {why}", flush=True)
        for page_bytes in pages:
            found = transfers(page_bytes, rounds, TRANSFER_BYTES, mooncakes, seeds)
            rows.append(_said(transfer_row(page_bytes, TRANSFER_BYTES, found)))
            goals += transfer_goals(page_bytes, found)
    about: Rows = [left_out(why)]
    if mooncakes is not None:
        about = [mooncakes.row(), *({"not beside mooncake": what, "because": why} for what, why in NOT_COMPARED.items())]
    return rows, about, goals


def client_rows(pages: tuple[int, ...], clients: tuple[int, ...], rounds: int, seeds: itertools.count[int]) -> Rows:
    return [
        _said(scaling_row(page_bytes, count, scaling(page_bytes, count, rounds, CLIENT_BYTES, seeds)))
        for page_bytes in pages
        for count in clients
    ]


def disk_rows(pages: tuple[int, ...], rounds: int, where: Path, seeds: itertools.count[int]) -> Rows:
    where.mkdir(parents=True, exist_ok=True)
    return [_said(disk_row(page_bytes, *disk(page_bytes, rounds, where, seeds))) for page_bytes in pages]


def _said(row: dict[str, Any]) -> dict[str, Any]:
    """A run takes minutes: each row is shown as soon as it is there."""
    print(
        "  ", ", ".join(f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items())
    )
    sys.stdout.flush()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds, two page sizes, 1 and 4 clients")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable")
    parser.add_argument("--no-mooncake", action="store_true")
    parser.add_argument("--disk-dir", type=Path, default=CACHE, help="on the file system to be measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the charts there")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    ends = slice(None, None, 2) if arguments.quick else slice(None)
    parts = arguments.only or PARTS
    seeds = itertools.count(1)
    print(f"clients, tiers, movers, Mooncake and dd share {os.cpu_count()} cores: compare ratios within a row", flush=True)
    tables: list[Rows] = []
    goals: list[Goal] = []
    missing = False
    if "transfer" in parts:
        rows, about, goals = transfer_rows(TRANSFER_PAGES[ends], rounds, not arguments.no_mooncake, seeds)
        tables += [rows, about]
        missing = not arguments.no_mooncake and any("left out" in row for row in about)
    if "clients" in parts:
        tables.append(client_rows(CLIENT_PAGES[ends], CLIENTS[ends], rounds, seeds))
    if "disk" in parts:
        tables.append(disk_rows(DISK_PAGES[ends], rounds, arguments.disk_dir, seeds))
        if not Yardstick.has_fio():
            tables.append(left_out_rows({"fio": "not installed: dd alone stands beside the disk level"}))
    show([table for table in tables if table], goals, arguments.json)
    draw_bars(tables, CHARTS, arguments.svg)
    return ended(goals, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
