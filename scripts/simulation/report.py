"""Tables, limits and charts from rows of studies. Pure, but for the files that it is told to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charts.lines import Axis, draw

Row = dict[str, Any]
_LATENCY = ("locate p50 ms", "locate p99 ms", "handoff p50 ms", "handoff p99 ms")
_METASERVER = ("requests/s", "metaserver core", "full at nodes", "messages/s", "MB/s in", *_LATENCY)
COLUMNS = {
    "scale": (*_METASERVER, "tier core max", "NIC max", "kkeys", "MB index"),
    "replicas": ("nodes", *_METASERVER),
    "recovery": ("kkeys", "recovery s", *_LATENCY, "recomputed at D"),
    "remedies": ("nodes", *_METASERVER, "tier core max", "NIC max"),
    "levels": ("hit local", "hit remote", "hit disk", "computed", "ttft p50 ms", "handoff p50 ms", "recomputed at D"),
    "grains": ("metaserver core", "messages/s", "MB/s in", "hit local", "computed", "locate p50 ms", "handoff p50 ms", "wall s"),
}


def table(study: str, rows: Sequence[Row]) -> list[Row]:
    """The columns that this study is about."""
    return [{"what": row["what"], **{name: row[name] for name in COLUMNS[study]}} for row in rows]


def charts(rows: Sequence[Row], folder: Path) -> list[Path]:
    """SVG files, of the studies that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = [row for row in rows if row["study"] == "scale"]
    recovery = [row for row in rows if row["study"] == "recovery"]
    nodes = Axis("nodes", log=True)
    drawn: dict[str, str] = {}
    if scale:
        names: tuple[str, ...] = ("metaserver core", "tier core max", "NIC max")
        drawn["load"] = draw("Load", nodes, Axis("share of one core, or of the card"), {n: _points(scale, n) for n in names})
        names = ("locate p50 ms", "locate p99 ms", "handoff p50 ms", "handoff p99 ms")
        drawn["latency"] = draw("Latency", nodes, Axis("ms", log=True), {name: _points(scale, name) for name in names})
    if recovery:
        points = {"recovery": sorted((row["kkeys"], row["recovery s"]) for row in recovery)}
        drawn["recovery"] = draw("Until a lost metaserver is whole", Axis("thousand keys", log=True), Axis("s", log=True), points)
    paths = []
    for name, text in drawn.items():
        paths.append(folder / f"scaling_{name}.svg")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def _points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(row["nodes"], row[name]) for row in rows]
