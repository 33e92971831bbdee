"""How fast and how large the catalogue is, beside a real Redis and Mooncake's master on the same machine in the same minutes.

    scripts/bench/catalogue [--quick] [--rounds 5] [--no-mooncake] [--json FILE] [--svg FOLDER]

locate      1, 64, 512 and 1,000 known keys per request, from 1 and 8 clients, each a Python process that asks and waits:
            pegaflow `locate`, Redis `MGET`, Mooncake `batch_is_exist`, in turns: who was first is last in the next round; medians
            over the rounds. redis-py reads with hiredis, or does not start. "echo" is the question of pegaflow's client sent back
            unread by a bare ROUTER: the part of the time that is the sockets'
insert      and remove, 1, 64 and 1,000 keys per request, in turns as well: pegaflow by the deltas of 1 and 8 tiers until the
            metaserver shows the last key, up to 256 of them on their way; Redis by `MSET` and `DEL`, one answered before the next
            is sent ("redis blocking") and in pipelines of 256 without an answer ("redis pipelined", which is like ours). Not
            Mooncake: its keys come with bytes
memory      resident bytes per key at 1 and 5 million keys, pegaflow and Redis
farewell    the longest locate of 64 keys while a node with a million keys leaves

What a catalogue calls the keys is made before its clock starts.
All share this machine's cores, load generators too: with 8 clients they and the server take turns on two cores here.
Exit codes: 0 all goals are met, 3 one is missed or Mooncake is left out though --no-mooncake does not say so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catalogue_client import ROWS
from catalogue_mooncake import MooncakeMaster
from children import Children, free_port
from drawn import Bars, draw_bars
from helper import Helper
from private_venv import Missing
from report import Goal, at_least, at_most, ended, left_out, show

from charts.lines import Axis

HERE = Path(__file__).parent
LOCATE_KEYS = (1, 64, 512, 1000)
CHANGE_KEYS = (1, 64, 1000)
CLIENTS = (1, 8)
STORES = ("pegaflow", "echo", "redis", "mooncake")
OURS, BLOCKING, PIPELINED = "pegaflow", "redis blocking", "redis pipelined"
CHANGED = [f"{name} {what} Mkeys/s" for what in ("put", "remove") for name in (OURS, BLOCKING, PIPELINED)]
CHARTS = (
    Bars(
        "catalogue_locate",
        "Who has these keys?",
        Axis("µs, p50", log=True),
        ["locate keys", "clients"],
        [f"{n} p50 us" for n in STORES],
    ),
    Bars("catalogue_changes", "Keys come and go", Axis("Mkeys/s", log=True), ["change keys", "clients"], CHANGED),
    Bars("catalogue_memory", "A key of one owner", Axis("bytes"), ["million keys"], ["pegaflow bytes/key", "redis bytes/key"]),
)
KNOWN = 25 * ROWS
"""Keys that all catalogues hold while they are asked; Mooncake takes a second per 20,000."""


class Machine(Children):
    """The catalogues that are compared, and their clients."""

    def metaserver(self) -> tuple[int, str]:
        """Its pid and where it takes requests."""
        at = f"ipc://{self.folder}/m{random.randrange(1 << 30)}.sock"
        flags = ["--requests", at, "--events", "tcp://127.0.0.1:*", "--control", "tcp://127.0.0.1:*", "--log-level", "error"]
        return self.spawn([sys.executable, "-m", "pegaflow.services.metaserver", *flags]).pid, at

    def redis(self) -> tuple[int, str]:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise SystemExit("redis-server is missing: scripts/setup installs it where it may, else apt-get install redis-server")
        at = f"{self.folder}/r{random.randrange(1 << 30)}.sock"
        flags = ["--port", "0", "--unixsocket", at, "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        pid = self.spawn([program, *flags]).pid
        while not Path(at).exists():
            time.sleep(0.01)
        return pid, at

    def echo(self) -> str:
        """Where it takes messages."""
        at = f"ipc://{self.folder}/e{random.randrange(1 << 30)}.sock"
        self.spawn([sys.executable, str(HERE / "catalogue_echo.py"), at])
        return at

    def client(self, kind: str, *at: str, python: str = sys.executable) -> Helper:
        return self.helper([python, str(HERE / "catalogue_client.py"), kind, *at])

    def tier(self, node: str, metaserver: str) -> Helper:
        return self.helper([sys.executable, str(HERE / "catalogue_tier.py"), node, metaserver])


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"process {pid} is gone")


def turned(names: Iterable[str], number: int) -> list[str]:
    """In the order of that round: who was first is last in the next one."""
    names = list(names)
    shift = number % len(names)
    return names[shift:] + names[:shift]


def others(catalogues: Iterable[str]) -> list[str]:
    """Those that ours is compared with."""
    return [name for name in catalogues if name not in (OURS, "echo")]


def together(helpers: list[Helper], **what: Any) -> list[dict[str, Any]]:
    for seed, helper in enumerate(helpers):
        helper.order(**what, seed=seed)
    return [helper.answer() for helper in helpers]


def beside_mooncake(machine: Machine, *, wanted: bool) -> tuple[MooncakeMaster | None, str]:
    """Its master, or why there is none."""
    if not wanted:
        return None, "--no-mooncake"
    try:
        return MooncakeMaster.run(machine.spawn, free_port), ""
    except Missing as missing:
        print(f"Mooncake is left out: {missing}", flush=True)
        return None, str(missing)


def mooncakes(machine: Machine, mooncake: MooncakeMaster) -> list[Helper]:
    """Its clients, one after the other: on a busy machine one may fail to start. Only the first one brings memory."""

    def client(segment_mib: int) -> Helper:
        at = (mooncake.at, f"127.0.0.1:{free_port()}", str(segment_mib))
        return machine.client("mooncake", *at, python=mooncake.python)

    clients: list[Helper] = []
    while len(clients) < max(CLIENTS):
        for attempt in range(3):
            try:
                clients.append(client(0 if clients else 256).ready())
                break
            except SystemExit:
                if attempt == 2:
                    raise
    return clients


def locates(catalogues: dict[str, list[Helper]], rounds: int, seconds: float) -> tuple[list[dict[str, Any]], list[Goal]]:
    rows, goals = [], []
    for clients in CLIENTS:
        for keys in LOCATE_KEYS:
            rates: dict[str, list[float]] = {name: [] for name in catalogues}
            p50: dict[str, list[float]] = {name: [] for name in catalogues}
            for number in range(rounds):
                for name in turned(catalogues, number):
                    answers = together(catalogues[name][:clients], do="locate", keys=keys, of=KNOWN, seconds=seconds)
                    rates[name].append(sum(answer["requests"] / answer["busy_s"] for answer in answers))
                    p50[name].append(statistics.median(answer["p50"] for answer in answers))
            row: dict[str, Any] = {"locate keys": keys, "clients": clients}
            for name in catalogues:
                row[f"{name} p50 us"] = round(statistics.median(p50[name]))
                row[f"{name} Mkeys/s"] = statistics.median(rates[name]) * keys / 1e6
            rows.append(row)
            if clients == 1 and keys in (64, 512):
                goals.append(
                    at_most(f"locate of {keys} keys, p50 us", statistics.median(p50["pegaflow"]), {64: 150, 512: 350}[keys])
                )
            if clients == 1 and keys == 512:
                for name in others(catalogues):
                    ratio = statistics.median(theirs / ours for theirs, ours in zip(p50[name], p50["pegaflow"], strict=True))
                    goals.append(at_least(f"locate of 512 keys: {name}'s time / pegaflow's, round by round", ratio, 1.0))
    return rows, goals


def changes(sides: Mapping[str, list[Helper]], count: int, rounds: int) -> list[dict[str, Any]]:
    """`sides`: :data:`CHANGED` has their names."""
    rows = []
    for clients in CLIENTS:
        for keys in CHANGE_KEYS:
            found: dict[str, list[float]] = {name: [] for name in CHANGED}
            each = ROWS if keys == 1 else max(ROWS, count // clients // ROWS * ROWS)
            for number in range(rounds):
                for name in turned(sides, number):
                    helpers = sides[name][:clients]
                    for place, helper in enumerate(helpers):
                        helper.do(do="prepare", count=each, **{"from": (1000 + 100 * place) * ROWS})
                    for what in ("put", "remove"):  # before the next side: both ways to ask Redis share its keys
                        began = time.perf_counter()
                        for helper in helpers:
                            helper.order(do=what, keys=keys)
                        for helper in helpers:
                            helper.answer()
                        rate = each * clients / (time.perf_counter() - began) / 1e6
                        found[f"{name} {what} Mkeys/s"].append(rate)
            medians = {name: statistics.median(values) for name, values in found.items()}
            rows.append({"change keys": keys, "clients": clients, **medians})
    return rows


def memory(sizes: list[int]) -> tuple[list[dict[str, Any]], list[Goal]]:
    rows, goals = [], []
    for million in sizes:
        chunks = million * 1_000_000 // ROWS
        with Machine() as machine:
            pid, at = machine.metaserver()
            tier = machine.tier("a", at).ready()
            before = resident(pid)
            took = tier.do(do="hold", chunks=chunks, first=0)["seconds"]
            time.sleep(2.0)  # what it does in slices afterwards is over
            bytes_per_key = (resident(pid) - before) / (chunks * ROWS)
            row = {"million keys": million, "pegaflow bytes/key": bytes_per_key, "snapshot s": took}
            pid, at = machine.redis()
            client = machine.client("redis", at).ready()
            before = resident(pid)
            step = 64
            for first in range(0, chunks, step):
                client.do(do="prepare", count=min(step, chunks - first) * ROWS, **{"from": first * ROWS})
                client.do(do="put", keys=1000)
            row["redis bytes/key"] = (resident(pid) - before) / (chunks * ROWS)
            rows.append(row)
            goals.append(at_most(f"bytes per key and owner at {million} million keys", bytes_per_key, 150))
    return rows, goals


def farewell(chunks: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    """A node with many keys leaves while another one's keys are asked for."""
    with Machine() as machine:
        _, at = machine.metaserver()
        tiers = [machine.tier(node, at).ready() for node in "ab"]
        tiers[0].do(do="hold", chunks=KNOWN // ROWS, first=0)
        tiers[1].do(do="hold", chunks=chunks, first=2000)
        client = machine.client("pegaflow", at).ready()
        longest: dict[str, list[float]] = {"quiet": [], "leaving": []}
        client.do(do="locate", keys=64, of=KNOWN, seconds=0.5, seed=0)
        for when in longest:
            client.order(do="longest", keys=64, of=KNOWN, seconds=2.0, seed=1)
            if when == "leaving":
                time.sleep(0.3)
                tiers[1].do(do="bye")
            longest[when] = client.answer()["longest_ms"]
    quiet, leaving = longest["quiet"], longest["leaving"]
    rows = [
        {"locate of 64 keys, ms": when, "longest": times[-1], "2nd": times[-2], "3rd": times[-3]}
        for when, times in longest.items()
    ]
    return rows, [at_most("longest locate while a million keys leave, ms above a quiet one", leaving[-1] - quiet[-1], 20.0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two short rounds, a million keys at most")
    parser.add_argument("--no-mooncake", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the charts there")
    arguments = parser.parse_args()
    rounds, seconds = (2, 0.2) if arguments.quick else (arguments.rounds, 0.5)
    tables: list[list[dict[str, Any]]] = []
    goals: list[Goal] = []
    print("clients, load generators and servers share", os.cpu_count(), "cores", flush=True)
    with Machine() as machine:
        _, metaserver = machine.metaserver()
        _, redis = machine.redis()
        echo = machine.echo()
        tiers = [machine.tier(f"t{n}", metaserver) for n in range(max(CLIENTS))]
        ends = {OURS: metaserver, "echo": echo, "redis": redis}
        catalogues = {name: [machine.client(name, at) for _ in range(max(CLIENTS))] for name, at in ends.items()}
        pipelines = [machine.client("pipelined", redis) for _ in range(max(CLIENTS))]
        mooncake, why = beside_mooncake(machine, wanted=not arguments.no_mooncake)
        for helper in [*tiers, *pipelines, *(client for clients in catalogues.values() for client in clients)]:
            helper.ready()
        if mooncake is not None:
            catalogues["mooncake"] = mooncakes(machine, mooncake)
        tiers[0].do(do="hold", chunks=KNOWN // ROWS, first=0)
        for name in others(catalogues):
            catalogues[name][0].do(do="prepare", count=KNOWN, **{"from": 0})
            catalogues[name][0].do(do="put", keys=500)
        rows, met = locates(catalogues, rounds, seconds)
        tables.append(rows)
        goals += met
        sides = {OURS: tiers, BLOCKING: catalogues["redis"], PIPELINED: pipelines}
        tables.append(changes(sides, 10 * ROWS if arguments.quick else 40 * ROWS, rounds))
        about = [{"peer": name, "as": catalogues[name][0].do(do="about")["about"]} for name in others(catalogues)]
    for rows, met in (farewell(1_000_000 // ROWS), memory([1] if arguments.quick else [1, 5])):
        tables.append(rows)
        goals += met
    tables += [about, left_out({"mooncake": why} if why else {})]
    show([table for table in tables if table], goals, arguments.json)
    draw_bars(tables, CHARTS, arguments.svg)
    return ended(goals, missing=bool(why) and not arguments.no_mooncake)


if __name__ == "__main__":
    sys.exit(main())
