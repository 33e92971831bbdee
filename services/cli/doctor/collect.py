"""Asks every service for the facts that the doctor judges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.facts import MAX_WAIT_MS, DiskSpeed, Facts, Reach, Reached
from pegaflow.common.wire.messages.operate import Document, Ping, Pong, Status
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.departed import Departed, missing
from pegaflow.services.cli.doctor.patient import Absent, Patient, Reachability
from pegaflow.services.cli.silence import FORGOTTEN_MS
from pegaflow.services.reach import reach

T = TypeVar("T")
DISK_BYTES = 64 << 20
AGAIN_S = 0.1
ABSENT = "absent"
"""In place of the socket's name: an endpoint where nobody answers."""


class Collected(NamedTuple):
    """`notes`: what could not be looked at, for people."""

    patients: list[Patient]
    absent: list[Absent]
    lost: list[Departed]
    notes: list[str]


async def collect(cluster: Cluster, disk: bool) -> Collected:
    """Facts of everybody at once, then what each can connect to, then, if asked, how fast disks are."""
    peers = [*cluster.metaservers, *cluster.tiers, *cluster.routers]
    budget_s = cluster.left_s / 2
    told = await asyncio.gather(*(_facts(cluster, peer, budget_s) for peer in peers))
    notes: list[str] = []
    seen = [(peer, patient) for peer, patient in zip(peers, told, strict=True) if patient is not None]
    advertised = [(patient.name, socket, url) for _, patient in seen for socket, url in _advertised(patient)]
    silent = {one.endpoint: Absent(one.service, one.node, one.endpoint, one.code) for one in cluster.wrong}
    advertised += [(one.name, ABSENT, one.endpoint) for one in silent.values()]
    here = reach(list(silent), cluster.left_s / 2)
    examined = asyncio.gather(*(_examined(cluster, patient, advertised, disk, notes) for _, patient in seen))
    mine, looked = await asyncio.gather(here, examined)
    tries = {endpoint: [("from here", code)] for endpoint, code in zip(silent, mine.codes, strict=True)}
    patients = []
    for patient in looked:
        for one in patient.reached:
            if one.socket == ABSENT:
                tries[one.endpoint].append((patient.name, one.code))
        patients.append(replace(patient, reached=[one for one in patient.reached if one.socket != ABSENT]))
    absent = [replace(one, seen=tries[one.endpoint]) for one in silent.values()]
    return Collected(patients, absent, await lost(cluster), notes)


async def lost(cluster: Cluster) -> list[Departed]:
    """Nodes that metaservers have given up within the last day, and that nobody here has heard of since."""
    here = {peer.node for peer in cluster.tiers}
    answers = await cluster.ask_each(cluster.metaservers, Status(), Document)
    return list({one.node: one for _, answer in answers for one in missing(document_of(answer), here, FORGOTTEN_MS)}.values())


async def _facts(cluster: Cluster, peer: Peer, budget_s: float) -> Patient | None:
    """None, and a line in the cluster's `wrong`, if there is no answer."""
    if peer.node == "?":
        pong = await cluster.ask(peer, Ping(), Pong, budget_s)
        if pong is None:
            return None
        peer = peer._replace(service=pong.service, node=pong.node)
    asked = time.time()
    answer = await cluster.ask(peer, Facts(), Document, budget_s)
    answered = time.time()
    if answer is None:
        return None
    told = document_of(answer)
    wall = told.get("wall_ns")
    offset = wall / 1e9 - (asked + answered) / 2 if isinstance(wall, int) else 0.0
    return Patient(answer.service, answer.node, told, offset, (answered - asked) / 2, epoch=answer.epoch)


def _advertised(patient: Patient) -> list[tuple[str, str]]:
    """What others shall be able to connect to. Control is for operators only, a router's other clients speak HTTP."""
    endpoints = patient.part("endpoints")
    return [(name, str(endpoints[name])) for name in ("requests", "events") if endpoints.get(name)]


async def _examined(
    cluster: Cluster, patient: Patient, advertised: Sequence[tuple[str, str, str]], disk: bool, notes: list[str]
) -> Patient:
    at = Peer(patient.service, patient.node, str(patient.part("endpoints").get("control") or ""))
    # Only this life: an ipc path of another machine may be that of another service on this one.
    others = [one for one in advertised if one[0] != patient.name]
    wait_ms = min(max(1, int(cluster.left_s * 600)), MAX_WAIT_MS)
    question = Reach([url for _, _, url in others], wait_ms)
    reaching: Awaitable[tuple[Reached | None, str]]
    measuring: Awaitable[tuple[Mapping[str, Any] | None, str]]
    reaching = _told(cluster, at, question, Reached, patient.epoch) if others else _nothing()
    disk = disk and patient.service == "tier" and bool(patient.option("disk_dir"))
    measuring = _measured(cluster, at, patient.epoch) if disk else _nothing()
    (reached, reach_unknown), (speed, disk_unknown) = await asyncio.gather(reaching, measuring)
    patient = replace(patient, reach_unknown=reach_unknown, disk_unknown=disk_unknown)
    if reached is not None:
        patient = replace(patient, reached=[Reachability(*one, code) for one, code in zip(others, reached.codes, strict=False)])
    if speed is not None:
        patient = replace(patient, disk=speed)
        notes.append(f"{patient.name}: disk {_speeds(speed)}")
    return patient


async def _nothing() -> tuple[None, str]:
    return None, ""


async def _told(cluster: Cluster, at: Peer, question: Message, wanted: type[T], epoch: int) -> tuple[T | None, str]:
    """What it said at its control endpoint; or None, and why."""
    if not at.endpoint:
        return None, "it has no control endpoint"
    while True:
        try:
            return await cluster.tell(at, question, wanted, cluster.left_s, epoch), ""
        except PegaflowError as error:
            if error.code != ErrorCode.BUSY or cluster.left_s <= AGAIN_S:  # another doctor asks it: one at a time
                why = f"no answer from {at.endpoint}" if error.code == ErrorCode.DEADLINE else f"{at.endpoint}: {error.code}"
                return None, why
        await asyncio.sleep(AGAIN_S)


async def _measured(cluster: Cluster, at: Peer, epoch: int) -> tuple[Mapping[str, Any] | None, str]:
    speed, why = await _told(cluster, at, DiskSpeed(DISK_BYTES), Document, epoch)
    try:
        return (document_of(speed) if speed is not None else None), why
    except PegaflowError as error:
        return None, error.text


def _speeds(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{way} {int(found.get(f'{way}_bytes_per_s') or 0) >> 20} MiB/s" for way in ("write", "read"))
