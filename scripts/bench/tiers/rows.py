"""How the rounds of each part become a row of its table: rates, then ratios taken within rounds. Pure."""

from __future__ import annotations

from typing import Any, Final

from .figures import Rounds  # so that tests, to which this is another package, find it too

COPY: Final = "copy"
PUT, LOCAL, MOVER, MOVER_TCP = "put", "get", "mover get", "tcp get"
THEIR_PUT, THEIR_GET = "mooncake put", "mooncake get"
SEAL, EVICT, FETCH = "seal", "evict", "fetch"
WRITE, READ = "write", "read"
DD, FIO = "dd ", "fio "
TRANSFERRED: Final = (COPY, PUT, LOCAL, MOVER, MOVER_TCP, THEIR_PUT, THEIR_GET)
SCALED: Final = (SEAL, EVICT, FETCH)
ON_DISK: Final = tuple(way + what for what in (WRITE, READ) for way in ("", DD, FIO))


def transfer_row(page_bytes: int, total: int, found: Rounds) -> dict[str, Any]:
    """GB/s, then how many times as fast as Mooncake, where that was there."""
    row: dict[str, Any] = {"put/get page_KiB": page_bytes >> 10, "pages": max(1, total // page_bytes)}
    for way in TRANSFERRED:
        if way in found:
            row[f"{way} GB/s"] = found.gb_s(way)
    for way, other in ((PUT, COPY), (LOCAL, COPY)):
        row[f"{way}/{other}"] = found.ratio(way, other)
    if THEIR_PUT in found:
        row[f"{PUT}/mooncake"] = found.ratio(PUT, THEIR_PUT)
        for way in (LOCAL, MOVER, MOVER_TCP):
            row[f"{way}/mooncake"] = found.ratio(way, THEIR_GET)
    return row


def left_out(why: str) -> dict[str, Any]:
    """Without Mooncake there is nothing that the transfer could be measured by: its goals are neither met nor missed."""
    return {"left out": "mooncake, and with it the goals of the transfer", "because": why.partition("\n")[0]}


def scaling_row(page_bytes: int, clients: int, found: Rounds) -> dict[str, Any]:
    row: dict[str, Any] = {"clients": clients, "page_KiB": page_bytes >> 10, "copy GB/s": found.gb_s(COPY)}
    for way in SCALED:
        row[f"{way} pages/s"] = round(found.pages_s(way))
        row[f"{way} GB/s"] = found.gb_s(way)
    for way, other in ((SEAL, COPY), (EVICT, SEAL), (FETCH, COPY)):
        row[f"{way}/{other}"] = found.ratio(way, other)
    return row


def disk_row(page_bytes: int, found: Rounds, direct: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"disk page_KiB": page_bytes >> 10, "io": "direct" if direct else "through the kernel's cache"}
    for what in (WRITE, READ):
        for way in (what, DD + what, FIO + what):
            if way in found:
                row[f"{way} GB/s"] = found.gb_s(way)
        row[f"{what} pages/s"] = round(found.pages_s(what))
        row[f"{what}/dd"] = found.ratio(what, DD + what)
        if FIO + what in found:
            row[f"{what}/fio"] = found.ratio(what, FIO + what)
    return row
