"""What may be saved, and which blocks are pinned for it. Pure: no vLLM, no torch, no sockets, no clock.

One question decides everything: how many tokens of a request has vLLM *really* computed when this step is over?

    written  = computed + scheduled                     of this very step, read live
    saveable = min(written, known tokens)               scheduled drafts may be rejected
    full     = min(hashes, blocks in the table, saveable // block size)

No counter of computed tokens is kept here. After a preemption blocks are recomputed in chunks of any size, and a
counter that went on from before would save rows that hold another request's bytes. Only what was *offered* is
remembered, as a block index: a block is offered once per request.

A save is one request's part of one intent. It pins its blocks from the step that published it until every rank has
said that its copy ended, so finish, abort and preemption need no case of their own.

    admitted ─▶ progressed* ─▶ published ─▶ ended (by each rank) ─▶ Unpin
                                            finished (any time): no further offers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """One request in one step, before vLLM adds the step's tokens to its count. All counts in tokens, `hashes` in
    full blocks."""

    request_id: str
    computed: int
    scheduled: int
    known: int
    hashes: int

    @property
    def written(self) -> int:
        return self.computed + self.scheduled


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks of one request that this step completes.

    `indices` are positions in the request, `blocks` vLLM's block ids beside them. With `tail_rows` > 0 the last entry
    is the tail: only that many rows of it are valid. `through`: every full block below it is offered from now on.
    """

    request_id: str
    indices: tuple[int, ...]
    blocks: tuple[int, ...]
    tail_rows: int
    through: int


@dataclass(frozen=True, slots=True)
class Save:
    """An offer that was published: `pins` stay pinned until every rank has ended it.

    `blocks` are the offer's, in its order. A block whose tail went unpublished and that filled up since is in it
    twice, once as a full page and once as a tail; it is pinned once.
    """

    save: int
    request_id: str
    blocks: tuple[int, ...]
    pins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unpin:
    """Give back one reference of each block."""

    blocks: tuple[int, ...]


@dataclass(slots=True)
class _Request:
    prompt: int
    has_tail: bool
    tail_due: bool
    offered: int = 0
    # Blocks that came from the tier in this session: offering them again would cost a message and tell nothing.
    loaded: range = range(0)


@dataclass(slots=True)
class _Pin:
    blocks: tuple[int, ...]
    ranks_left: int


@dataclass(slots=True)
class SaveTracker:
    """State of all saves of one engine.

    `block_size` in tokens; `ranks`: how many processes report the end of each save; `tails`: whether partial tail
    pages are saved (`pegaflow.pd_tail_save`).
    """

    block_size: int
    ranks: int
    tails: bool
    _requests: dict[str, _Request] = field(default_factory=dict)
    _pins: dict[int, _Pin] = field(default_factory=dict)
    _next_save: int = 1

    def admitted(self, request_id: str, prompt: int, plain: bool) -> None:
        """A new request of `prompt` tokens. `plain`: nothing but its ids decides its KV, so its tail has a key."""
        has_tail = self.tails and plain and prompt % self.block_size != 0
        self._requests[request_id] = _Request(prompt, has_tail, has_tail)

    def loaded(self, request_id: str, first: int, last: int) -> None:
        """Blocks [first, last) were loaded from the tier, so it holds them."""
        if (request := self._requests.get(request_id)) is not None:
            request.loaded = range(first, last)

    def wants(self, progress: Progress) -> bool:
        """Whether `progressed` can have an offer, without the block table, which is costly to read."""
        request = self._requests.get(progress.request_id)
        if request is None:
            return False
        return self._full(progress) > request.offered or (request.tail_due and progress.written >= request.prompt)

    def progressed(self, progress: Progress, table: Sequence[int]) -> Offer | None:
        """What this step completes. Changes nothing: an offer counts once it is published."""
        request = self._requests.get(progress.request_id)
        if request is None:
            return None
        full = min(self._full(progress), len(table))
        indices = [index for index in range(request.offered, full) if index not in request.loaded]
        tail_rows = 0
        tail_index = request.prompt // self.block_size
        if request.tail_due and progress.written >= request.prompt and len(table) > tail_index and progress.hashes >= tail_index:
            tail_rows = request.prompt % self.block_size
            indices.append(tail_index)
        if not indices and full <= request.offered:
            return None
        return Offer(
            progress.request_id,
            tuple(indices),
            tuple(table[index] for index in indices),
            tail_rows,
            max(full, request.offered),
        )

    def published(self, offers: Sequence[Offer]) -> list[Save]:
        """These offers went out in an intent: their blocks are to be pinned now."""
        saves: list[Save] = []
        for offer in offers:
            request = self._requests[offer.request_id]
            request.offered = offer.through
            if offer.tail_rows:
                request.tail_due = False
            if not offer.blocks:
                continue
            save = Save(self._next_save, offer.request_id, offer.blocks, tuple(dict.fromkeys(offer.blocks)))
            self._next_save += 1
            self._pins[save.save] = _Pin(save.pins, self.ranks)
            saves.append(save)
        return saves

    def ended(self, save: int, ranks: int = 1) -> Unpin | None:
        """`ranks` more ranks have done with a save: written, abandoned or failed. Raises KeyError for one too many."""
        pin = self._pins[save]
        pin.ranks_left -= ranks
        if pin.ranks_left < 0:
            raise KeyError(f"save {save} was ended by more than {self.ranks} ranks")
        if pin.ranks_left > 0:
            return None
        del self._pins[save]
        return Unpin(pin.blocks)

    def prompt_offered(self, request_id: str) -> bool:
        """Whether every page of its prompt, the tail too, was offered or came from the tier."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        return request.offered >= request.prompt // self.block_size and not request.tail_due

    def finished(self, request_id: str) -> None:
        """The request is over, however. Its open saves go on."""
        self._requests.pop(request_id, None)

    def reset(self) -> None:
        """No request holds a block any more, and all will be computed anew: offers begin anew. Open saves go on."""
        for request in self._requests.values():
            request.offered, request.loaded, request.tail_due = 0, range(0), request.has_tail

    @property
    def open_saves(self) -> int:
        """Saves that still pin blocks."""
        return len(self._pins)

    def pinned(self) -> dict[int, int]:
        """Block id → how many references are held for saves."""
        counts: dict[int, int] = {}
        for pin in self._pins.values():
            for block in pin.blocks:
                counts[block] = counts.get(block, 0) + 1
        return counts

    def validate(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        for save, pin in self._pins.items():
            assert 0 < save < self._next_save, save
            assert 0 < pin.ranks_left <= self.ranks, (save, pin)
            assert pin.blocks, save
            assert len(set(pin.blocks)) == len(pin.blocks), (save, pin)
        for request_id, request in self._requests.items():
            assert request.offered >= 0, request_id
            assert not request.tail_due or (self.tails and request.prompt % self.block_size), request_id

    def _full(self, progress: Progress) -> int:
        saveable = min(progress.written, progress.known)
        return min(progress.hashes, saveable // self.block_size)
