"""A metaserver whose catalogue lies in a store that several share, pure. Commands go to the store, events come back.

    writer    one metaserver per node, by a claim that it renews with each hello; it clones the tier as any metaserver does
    record    node ─▶ (epoch, generation): which copy readers look at; a swap replaces it, so readers see old or new, never half
    reader    every metaserver, for every locate: a record counts only while its epoch is the one that the node's own hellos say

Who writes keeps names and digests of what it wrote (some 30 bytes per key); who reads keeps nothing, and both can be lost. A
writer that stood still finds its claim taken and begins anew; what it wrote meanwhile lies in generations that nobody sees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, assert_never

from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.catalogue import CatalogueBeat, Locate
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import (
    Claim,
    Command,
    Connect,
    Disconnect,
    Drop,
    Fail,
    Log,
    Look,
    Put,
    Reply,
    Resign,
    Show,
)
from pegaflow.services.metaserver.index import IndexGeneration
from pegaflow.services.metaserver.locate import Holders, Question
from pegaflow.services.metaserver.nodes import Node
from pegaflow.services.metaserver.state import MetaserverState
from pegaflow.services.metaserver.waiters import Waiter

MAX_LOOKS = 8192


class SharedGeneration:
    """A generation in the store under a name of its own. Digest and counts come from a copy in this process."""

    def __init__(self, local: IndexGeneration, name: str, out: Callable[[Command], None]) -> None:
        self._local, self.name, self._out = local, name, out
        self.counts = local.counts
        self._is_void = False

    @property
    def digest(self) -> bytes:
        return self._local.digest

    def entries_of(self, keys: Collection[bytes]) -> list[int]:
        return self._local.entries_of(keys)

    def put(self, keys: Collection[bytes], entries: Collection[int]) -> None:
        self._local.put(keys, entries)
        if keys:
            self._out(Put(self.name, list(keys), list(entries), self._local.is_live))

    def live(self) -> None:
        self._local.live()

    def void(self) -> None:
        self._local.void()
        if not self._is_void:
            self._is_void = True
            self._out(Drop(self.name))

    def agrees(self, beat: CatalogueBeat) -> bool:
        return self._local.agrees(beat)

    def validate(self) -> None:
        assert not self._is_void
        self._local.validate()


class _Share:
    """What this metaserver knows of one node's place in the store."""

    __slots__ = ("generations", "mine", "record")

    def __init__(self) -> None:
        self.mine = False
        self.record: events.Record | None = None
        self.generations: list[SharedGeneration] = []


class _Looking:
    """A question on its way to the store. `stale`: something changed after it was sent."""

    __slots__ = ("asker", "message", "over", "places", "question", "stages", "stale", "waiter")

    def __init__(
        self, asker: Any, message: Locate, places: list[tuple[Node, events.Record]], waiter: Waiter | None, over: bool
    ) -> None:
        self.asker, self.message, self.places, self.waiter, self.over = asker, message, places, waiter, over
        self.stale = False
        self.question = Question(message, self._holders)
        self.stages: Iterator[Sequence[bytes]] = self.question.stages()

    def _holders(self, number: Hashable) -> Holders:
        assert isinstance(number, tuple)
        return [(node, int(entry)) for (node, _), entry in zip(self.places, number, strict=True) if entry is not None]


class SharedState(MetaserverState):
    """One life of one of several metaservers over one store."""

    def __init__(self, epoch: int, jitter: Callable[[], float]) -> None:
        super().__init__(epoch, jitter)
        self._epoch = epoch
        self._names = itertools.count(1)
        self._tickets = itertools.count(1)
        self._shares: dict[str, _Share] = {}
        self._looks: dict[int, _Looking] = {}
        self._looked_for: dict[int, _Looking] = {}  # by the number of the waiter

    def _generation(self, node: str) -> SharedGeneration:
        name = f"{node}:{self._epoch:016x}:{next(self._names)}"
        made = SharedGeneration(self.index.generation(node), name, lambda command: self._out.append(command))
        self._shares[node].generations.append(made)
        return made

    # --- who writes --------------------------------------------------------------------------------------------------

    def _hello(self, asker: Any, hello: Any, now: float) -> None:
        self._shares.setdefault(hello.node, _Share())
        try:
            super()._hello(asker, hello, now)
        finally:
            if hello.node not in self.nodes.by_name:
                self._shares.pop(hello.node, None)

    def _greeted(self, node: Node, connect: bool) -> None:
        share = self._shares[node.name]
        if connect:
            self._set_record(node, None)
            if share.mine:
                super()._greeted(node, connect)
        self._claim(node, share)

    def _claim(self, node: Node, share: _Share) -> None:
        share.generations = [made for made in share.generations if not made._is_void]
        self._out.append(Claim(node.name, node.epoch, tuple(made.name for made in share.generations) if share.mine else ()))

    def _stored(self, event: events.StoreEvent, now: float) -> None:
        match event:
            case events.Claimed():
                self._claimed(event, now)
            case events.Looked(ticket, columns):
                self._looked(ticket, columns, now)
            case events.Changed(keys):
                if keys is None:
                    self._settle_all(now)
                    return
                changed = set(keys)
                for looking in self._looks.values():
                    looking.stale = looking.stale or not changed.isdisjoint(looking.message.keys)
                if len(self.waiters):
                    self._settle(self.waiters.concerned(keys), now)
            case events.StoreBack():
                self.counts["store_back"] += 1
                for name, share in self._shares.items():
                    if share.mine:
                        self._stop_writing(self.nodes.by_name[name], share)
                self._settle_all(now)
            case _:
                assert_never(event)

    def _claimed(self, event: events.Claimed, now: float) -> None:
        node, share = self.nodes.by_name.get(event.node), self._shares.get(event.node)
        if node is None or share is None or node.epoch != event.epoch:
            if event.mine and share is None:
                self._out.append(Resign(event.node, 0))
            return
        if share.mine and not (event.mine and event.renewed):
            # In the break the store may have refused a record, or let generations go, and another one may have written.
            self._stop_writing(node, share)
        if event.mine and not share.mine:
            share.mine = True
            self.counts["claims"] += 1
            self._out.append(Connect(node.name, node.requests, node.events))
            self._out.append(Log("writes", {"peer": node.name, "peer_epoch": f"{node.epoch:016x}"}))
        before = share.record
        self._set_record(node, event.record)
        if before != share.record and (before is None or share.record is None or before[:2] != share.record[:2]):
            self._settle_all(now)

    def _set_record(self, node: Node, record: events.Record | None) -> None:
        share = self._shares[node.name]
        share.record = record if record is not None and record.epoch == node.epoch else None
        node.elsewhere = share.record is not None
        if not node.whole:
            node.shown = 0
        elif node.shown != node.epoch:
            self._show_up(node)

    def _stop_writing(self, node: Node, share: _Share) -> None:
        """Another one writes this node; what was cloned here goes, what readers see stays."""
        share.mine = False
        self._out.append(Disconnect(node.name))
        self._out.append(Log("writes_no_more", {"peer": node.name}))
        epoch, shown = node.epoch, node.shown
        node.clone.leave(for_good=False)
        node.clone.meet(epoch)
        node.shown = shown if node.whole else 0

    def _swapped(self, node: Node, first: bool, now: float) -> None:
        current = node.clone.current
        assert isinstance(current, SharedGeneration)
        self._out.append(Show(node.name, node.epoch, current.name))
        self._claim(node, self._shares[node.name])  # so that the record is seen at once, here too
        if node.shown != node.epoch:
            self._show_up(node)

    def _changed(self, keys: Collection[bytes], now: float) -> None:
        """The store tells everybody, this metaserver too, once it has the change."""

    def _show_down(self, node: Node, epoch: int, reason: str) -> None:
        super()._show_down(node, epoch, reason)
        if node.name in self.nodes.by_name:  # it lives on in another epoch
            self._set_record(node, None)

    def _lost(self, node: Node, epoch: int) -> None:
        share = self._shares.pop(node.name)
        self._out.append(Resign(node.name, epoch if share.mine else 0))

    # --- locate ------------------------------------------------------------------------------------------------------

    def _locate(self, asker: Any, message: Locate, now: float) -> None:
        self._check(message)
        if len(self._looks) >= MAX_LOOKS:
            raise RemoteError(ErrorCode.BUSY, f"{len(self._looks)} locates are with the store already")
        self._look(asker, message, None, False, now)

    def _settle_one(self, waiter: Waiter, now: float) -> None:
        if waiter.number in self._looked_for:
            self._looked_for[waiter.number].stale = True
        else:
            self._look(waiter.request, waiter.message, waiter, False, now)

    def _settle_over(self, waiter: Waiter, now: float) -> None:
        """Looks for it for the last time."""
        self.waiters.remove(waiter)
        self._look(waiter.request, waiter.message, None, True, now)

    def _settle_all(self, now: float) -> None:
        for looking in self._looks.values():
            looking.stale = True
        self._settle(self.waiters.all(), now)

    def _look(self, asker: Any, message: Locate, waiter: Waiter | None, over: bool, now: float) -> None:
        self._turn += 1
        found = [(name, share.record) for name, share in self._shares.items() if name != message.asker]
        places = [(self.nodes.by_name[name], record) for name, record in found if record is not None]
        looking = _Looking(asker, message, places, waiter, over)
        if waiter is not None:
            self._looked_for[waiter.number] = looking
        self._next_stage(looking, now)

    def _next_stage(self, looking: _Looking, now: float) -> None:
        keys = next(looking.stages, None)
        if keys is None:
            self._finish(looking, now)
        elif not looking.places:
            looking.question.take(([()], [len(keys)]))
            self._next_stage(looking, now)
        else:
            ticket = next(self._tickets)
            self._looks[ticket] = looking
            self._out.append(Look(ticket, tuple(record.generation for _, record in looking.places), keys))

    def _looked(self, ticket: int, columns: Sequence[Sequence[bytes | None]] | PegaflowError, now: float) -> None:
        looking = self._looks.pop(ticket)
        waiter = looking.waiter
        if isinstance(columns, PegaflowError):
            if waiter is not None:
                del self._looked_for[waiter.number]
                if waiter not in self.waiters:
                    return  # its time was over in the meantime; the last look answers
                self.waiters.remove(waiter)
            self.counts["locates_failed"] += 1
            self._out.append(Fail(looking.asker, columns.code, columns.text))
            return
        runs = [(number, len(list(run))) for number, run in itertools.groupby(zip(*columns, strict=True))]
        looking.question.take(([number for number, _ in runs], [count for _, count in runs]))
        self._next_stage(looking, now)

    def _finish(self, looking: _Looking, now: float) -> None:
        waiter = looking.waiter
        if waiter is not None:
            del self._looked_for[waiter.number]
            if waiter not in self.waiters:
                return
        found = looking.question.found(self._turn, now)
        waits = not looking.over and bool(looking.message.wait_ms) and self._worth_waiting(looking.message, found)
        if not self._stands(looking) or (waits and looking.stale):
            self._look(looking.asker, looking.message, waiter, looking.over, now)
        elif waiter is not None:
            self._decide_waiter(waiter, found, False)
        elif looking.over:
            self.counts["locates_awaited" if found.sealed else "locates_timeout"] += 1
            self._out.append(Reply(looking.asker, found.located))
        else:
            try:
                self._decide(looking.asker, looking.message, found, now)
            except RemoteError as error:
                self._out.append(Fail(looking.asker, error.code, error.text))

    def _stands(self, looking: _Looking) -> bool:
        """No node that the answer may name has gone or begun another life since the store was asked."""
        return all(self.nodes.by_name.get(node.name) is node and node.epoch == record.epoch for node, record in looking.places)

    # --- looking -----------------------------------------------------------------------------------------------------

    def dump(self, now: float) -> dict[str, Any]:
        shares = self._shares.items()
        return super().dump(now) | {
            "looks": len(self._looks),
            "writes": sorted(name for name, share in shares if share.mine),
            "stored": {name: share.record.keys for name, share in shares if share.record is not None},
        }

    def _validate_waiters(self) -> None:
        assert self._shares.keys() == self.nodes.by_name.keys()
        for name, share in self._shares.items():
            node = self.nodes.by_name[name]
            assert node.elsewhere == (share.record is not None)
            assert share.record is None or share.record.epoch == node.epoch, "readers look at a life that is over"
            assert share.mine or not node.clone.whole, "a clone that nobody feeds"
        on_their_way = list(self._looks.values())
        assert all(looking in on_their_way for looking in self._looked_for.values()), "a look that is lost"
        for waiter in self.waiters.all():
            assert waiter.wanted or waiter.number in self._looked_for
