"""Whom a command talks to: metaservers, every tier that one of them knows or the command line names, and routers.

Everything is asked at once and under one deadline, `--timeout`: half of it for finding out who is there, the rest for what is
asked of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.operate import Document, Ping, Pong
from pegaflow.services.cli import output, target
from pegaflow.services.cli.access import Access
from pegaflow.services.cli.caller import SILENCE, Caller
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.target import Target, UsageError

T = TypeVar("T")
Counted = TypeVar("Counted", inspection.GrantList, inspection.LeaseList)
FINDING = 0.5


class Peer(NamedTuple):
    """One service. `state` and `control` are what a metaserver says of a tier, empty if none was asked."""

    service: str
    node: str
    endpoint: str
    epoch: int = 0
    state: str = ""
    control: str = ""


class Cluster:
    """`async with Cluster(at) as cluster`: who answered is in `metaservers` and `tiers`, who did not is in `wrong`.

    A tier that a metaserver names is in `tiers` whether it answers or not; one that is named by its endpoint only if it does.
    `routers` are those that were named, not asked yet: no other service knows them.
    """

    def __init__(self, at: Target) -> None:
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + at.timeout_s
        self._caller = Caller(at)
        self.metaservers: list[Peer] = []
        self.tiers: list[Peer] = []
        self.routers = [Peer("router", "?", url) for url in at.routers]
        self.wrong: list[Wrong] = []

    async def __aenter__(self) -> Self:
        try:
            await self._find()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._caller.close()

    async def _find(self) -> None:
        budget_s = self._at.timeout_s * FINDING
        named = [Peer("metaserver", "?", url) for url in self._at.metaservers]
        named += [Peer("tier", "?", url) for url in self._at.tiers]
        pongs = asyncio.gather(*(self.ask(peer, Ping(), Pong, budget_s) for peer in named))
        lists = asyncio.gather(*(self._nodes(peer, budget_s) for peer in named if peer.service == "metaserver"))
        found: dict[tuple[str, int], Peer] = {}
        for nodes in await lists:
            for peer in nodes:
                found.setdefault((peer.node, peer.epoch), peer)
        for peer, pong in zip(named, await pongs, strict=True):
            if pong is None:
                continue
            seen = peer._replace(service=pong.service, node=pong.node, epoch=pong.epoch)
            if pong.service == "metaserver":
                self.metaservers.append(seen)
            else:
                found.setdefault((seen.node, seen.epoch), seen)
        self.tiers = sorted(found.values())

    async def _nodes(self, peer: Peer, budget_s: float) -> list[Peer]:
        try:
            answer = await self.tell(peer, Nodes(), NodeList, budget_s)
        except PegaflowError as error:
            if error.code not in (*SILENCE, *Access):  # else its ping says so
                self.wrong.append(Wrong(peer.service, peer.node, peer.endpoint, error.code, error.text))
            return []
        columns = zip(answer.nodes, answer.requests, answer.epochs, answer.states, answer.control, strict=True)
        return [Peer("tier", node, url, epoch, state, control) for node, url, epoch, state, control in columns]

    @property
    def left_s(self) -> float:
        """What is left of `--timeout`."""
        return max(0.05, self._deadline - self._loop.time())

    async def tell(self, peer: Peer, message: Message, wanted: type[T], budget_s: float | None = None, epoch: int = 0) -> T:
        """One question. Raises `PegaflowError`: no answer in time, a refusal, or an answer of another kind.

        `epoch`: only this life of the service may answer it.
        """
        answer: Any = await self._caller.ask(peer.endpoint, message, self.left_s if budget_s is None else budget_s, epoch)
        if not isinstance(answer, wanted):
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"answered {message.KIND} with {type(answer).__name__}")
        return answer

    async def ask(self, peer: Peer, message: Message, wanted: type[T], budget_s: float | None = None) -> T | None:
        """One question; None, and a line in `wrong`, if there is no answer to it."""
        try:
            return await self.tell(peer, message, wanted, budget_s)
        except PegaflowError as error:
            self.wrong.append(Wrong(peer.service, peer.node, peer.endpoint, error.code, error.text))
            return None

    async def ask_each(self, peers: Sequence[Peer], message: Message, wanted: type[T]) -> list[tuple[Peer, T]]:
        """One question to many at once; those who answered it, in order."""
        answers = await asyncio.gather(*(self.ask(peer, message, wanted) for peer in peers))
        return [(peer, answer) for peer, answer in zip(peers, answers, strict=True) if answer is not None]


async def rows_of_each(
    cluster: Cluster, question: Message, wanted: type[Counted], rows_of: Callable[[str, Counted], list[dict[str, Any]]], what: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every tier's rows for one question, and a note for each that has more than it says; answers carry their `total`."""
    rows: list[dict[str, Any]] = []
    notes = []
    for peer, answer in await cluster.ask_each(cluster.tiers, question, wanted):
        shown = rows_of(peer.node, answer)
        rows += shown
        if answer.total > len(shown):
            notes.append(f"tier {peer.node} has {answer.total} {what}, the first {len(shown)} are shown")
    return rows, notes


def document_of(answer: Document) -> Mapping[str, Any]:
    """A service's own word. Raises `bad_message` if it is no JSON object."""
    try:
        document = json.loads(answer.json)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RemoteError(ErrorCode.BAD_MESSAGE, f"the document of {answer.service} {answer.node} is no JSON object")
    return document


Question = Callable[[Cluster], Awaitable[Listing]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a list command that looks at the cluster: where, how long, how it is shown."""
    target.add_options(parser)
    output.add_options(parser)


def listed(args: argparse.Namespace, question: Question) -> int:
    """Runs a list command over the cluster; whoever did not answer is `wrong` in what it shows."""
    at = target.choose(args)

    async def look() -> Listing:
        async with Cluster(at) as cluster:
            try:
                found = await question(cluster)
            except (UsageError, PegaflowError) as error:
                if not cluster.wrong:
                    raise
                # What seems to be wrong usage, or not there, may only be unknown, because somebody does not answer.
                code, text = (error.code, error.text) if isinstance(error, PegaflowError) else (ErrorCode.UNKNOWN, str(error))
                found = Listing((), (), [Wrong("", "", "", code, text)])
            return replace(found, wrong=[*cluster.wrong, *found.wrong])

    return output.present(args, look)
