"""Handing over, pure: a tier that leaves for good asks others to fetch what nobody else has (docs/protocol.md 3.6).

    which nodes are up? ▶ who has the next keys? ▶ take these, from me ▶ who has them now? …

The last word on a key is the catalogue's: it is handed over when another node is known to have it. Others take what fits into
their free memory, so that no page of theirs goes for it; what fits nowhere stays behind and is counted. Most recently used first.

    pages and disk ──some per tick──▶ by use ──batch by batch──▶ line ──taken──▶ resting, until it is looked for
    what comes meanwhile ────────────────────────────────────────▲

Nothing here walks over everything in one event: a tier of a million pages goes on serving its engines meanwhile.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import NO_OWNER, Located, NodeList
from pegaflow.common.wire.messages.transfer import Taken
from pegaflow.services.tier.by_use import ByUse
from pegaflow.services.tier.commands import AskNodes, Command, Locate, Log, Offer
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.disk.round import DiskRound
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.round import Round

BATCH_KEYS = 256
BATCH_BYTES = 64 << 20
SLICE = 4096
"""Pages looked at in one tick (or those of one slab)."""
PAUSE_S = 0.25
"""Between two rounds: what was taken arrives meanwhile."""
SHED = 4
"""Sets let go of in one tick."""
TRIES = 8
"""After so many offers a key stays behind: whoever took it does not get it, or nobody answers."""
AGAIN_S = 6.0
"""Until a key that was taken is offered again: a pin, a READ and a checksum may take as long."""
RETRY_S = 1.0
"""Until a key is offered again to whom did not answer."""
ALONE_ROUNDS = 40
"""Rounds without any other node after which keys stay behind: a metaserver that has just started knows nobody yet."""


class _Target(NamedTuple):
    node: str
    epoch: int
    endpoint: str


class Handover:
    """One round at a time. `on` from `begin` to `stop`; `done` when every key has found its end."""

    def __init__(
        self,
        node: str,
        pages: Pages,
        disk: DiskLevel,
        out: list[Command],
        counts: Counter[str],
        jobs: itertools.count[int],
        growing: Callable[[], bool],
    ) -> None:
        """`growing`: are there saves that may still be sealed?"""
        self._node, self._pages, self._disk, self._out, self._counts, self._jobs = node, pages, disk, out, counts, jobs
        self._growing = growing
        self.on = self.done = False
        self._round: Round | None = None
        self._disk_round: DiskRound | None = None
        self._came: deque[bytes] = deque()  # since it began, in memory or on disk
        self._seen: list[set[bytes]] = [set() for _ in range(256)]  # many, so that none grows in one long step
        self._shed: list[set[bytes]] = []  # of a hand-over that was stopped: let go bit by bit
        self._line = ByUse()
        self._left: OrderedDict[bytes, None] = OrderedDict()  # next
        self._resting: OrderedDict[bytes, float] = OrderedDict()  # taken, and until when they may be on their way
        self._tries: Counter[bytes] = Counter()
        self._job = 0
        self._batch: list[bytes] = []
        self._targets: list[_Target] = []
        self._staying: frozenset[str] = frozenset()
        self._alone = 0
        self._now = 0.0
        self._turn = 0
        self._next_at = 0.0

    def begin(self) -> None:
        self.stop()
        self.on = True
        self._round, self._disk_round = Round(self._pages.allocator), DiskRound(self._disk.index)
        self._pages.arrived = self._came.append

    def stop(self) -> None:
        """What others have begun to fetch they go on with."""
        self.on = self.done = False
        self._pages.arrived = self._round = self._disk_round = None
        self._came.clear()
        self._shed += filter(None, self._seen)
        self._seen = [set() for _ in self._seen]
        self._line = ByUse()
        self._left.clear()
        self._resting.clear()
        self._tries.clear()
        self._job = self._alone = 0

    @property
    def collecting(self) -> bool:
        """There are pages that it has not looked at yet; the next tick does."""
        return self._walking or bool(self._came)

    @property
    def _walking(self) -> bool:
        return self._round is not None or self._disk_round is not None

    def tick(self, now: float) -> None:
        self._now = now
        del self._shed[:SHED]
        if not self.on or self.done:
            return
        self._collect()
        if self._walking or self._job or now < self._next_at:
            return
        self._next_at = now + PAUSE_S
        if not self._waiting:
            if not self._came and not self._growing():
                self.done, self._pages.arrived = True, None
                self._out.append(Log("handed_over", self.view()))
            return
        self._job = next(self._jobs)
        self._out.append(AskNodes(self._job))

    @property
    def _waiting(self) -> int:
        return len(self._line) + len(self._left) + len(self._resting)

    # --- what is here ------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """One slice of what was here when it began, the most recently used first; then what has come since."""
        budget = SLICE
        if self._round is not None:
            pages = self._round.next(budget)
            budget -= len(pages)
            if self._round.over:
                self._round = None
            sealed = PageState.SEALED
            self._line.add((page.key, page.used_at) for page in pages if page.state is sealed and self._is_new(page.key))
        while budget > 0 and self._round is None and self._disk_round is not None:
            keys = self._disk_round.next(budget)
            budget -= len(keys)
            self._line.add((key, 0) for key in keys if self._is_new(key))
            if self._disk_round.over:
                self._disk_round = None
        while budget > 0 and self._came and not self._walking:
            budget -= 1
            if self._is_new(key := self._came.popleft()):
                self._left[key] = None

    def _is_new(self, key: bytes) -> bool:
        seen = self._seen[key[-1]]
        if key in seen:
            return False
        seen.add(key)
        return True

    def _lengths(self, key: bytes) -> tuple[int, ...]:
        """Empty: it is gone."""
        page = self._pages.index.get(key)
        if page is not None and page.state is PageState.SEALED:
            return page.lengths
        record = self._disk.index.records.get(key)
        return record.lengths if record is not None else ()

    def nodes(self, job: int, answer: NodeList | PegaflowError) -> None:
        if job != self._job:
            return
        self._job = 0
        if not isinstance(answer, NodeList):
            return  # asked again in the next round
        rows = zip(answer.nodes, answer.epochs, answer.requests, answer.states, strict=True)
        self._targets = [_Target(node, epoch, at) for node, epoch, at, state in rows if state == "up" and node != self._node]
        self._staying = frozenset(target.node for target in self._targets)
        self._alone = 0 if self._targets else self._alone + 1
        if 0 < self._alone < ALONE_ROUNDS:
            return
        self._batch = self._next_batch()
        if self._batch:
            self._job = next(self._jobs)
            self._out.append(Locate(self._job, self._batch, 0, False, holes=True))

    def _next_batch(self) -> list[bytes]:
        """Keys of one shape: what was taken long enough ago, then what is next; last, what may still be on its way."""
        batch: list[bytes] = []
        shape: tuple[int, tuple[int, ...]] | None = None
        size = 0
        while self._line and len(self._left) < BATCH_KEYS:
            self._left[self._line.pop()] = None
        late = list(itertools.islice(itertools.takewhile(lambda key: self._resting[key] <= self._now, self._resting), BATCH_KEYS))
        soon = itertools.islice(self._resting, len(late), None)
        for key in list(itertools.islice(itertools.chain(late, self._left, soon), BATCH_KEYS)):
            lengths = self._lengths(key)
            if not lengths:
                self._end({key})
                continue
            if shape not in (None, (len(key), lengths)) or (batch and size + sum(lengths) > BATCH_BYTES):
                break
            shape = len(key), lengths
            size += sum(lengths)
            batch.append(key)
        return batch

    def located(self, job: int, answer: Located | PegaflowError) -> bool:
        """False: that was not our question."""
        if not job or job != self._job:
            return False
        self._job = 0
        if isinstance(answer, Located) and len(answer.states) == len(self._batch):
            elsewhere = set(self._elsewhere(answer))
            for key in elsewhere:
                self._counts["handed_over" if self._tries[key] else "had_elsewhere"] += 1
            self._end(elsewhere)
            self._offer([key for key in self._batch if key not in elsewhere])
        return True

    def _elsewhere(self, answer: Located) -> Iterator[bytes]:
        """Keys that a node has which stays. Another one that drains may hand over the same keys, and count on us."""
        stays = [node in self._staying for node in answer.nodes]
        for i, key in enumerate(self._batch):
            if any(owner != NO_OWNER and stays[owner] for owner in answer.owners[i * answer.width : (i + 1) * answer.width]):
                yield key

    def _offer(self, keys: list[bytes]) -> None:
        due = [key for key in keys if self._resting.get(key, 0.0) <= self._now]
        worn = {key for key in due if self._tries[key] >= TRIES or not self._lengths(key)}
        self._stay(worn)
        self._batch = [key for key in due if key not in worn]
        if not self._batch:
            return
        if not self._targets:
            self._stay(set(self._batch))
            return
        target = self._targets[self._turn % len(self._targets)]
        self._job = next(self._jobs)
        self._out.append(Offer(self._job, target.endpoint, target.epoch, self._batch, self._lengths(self._batch[0])))

    def taken(self, job: int, answer: Taken | PegaflowError) -> None:
        """What was taken rests, to be looked for; for the rest the next node is asked at once.

        An error says nothing of room: after it the next node is asked a round later.
        """
        if not job or job != self._job:
            return
        self._job = 0
        count = min(answer.count, len(self._batch)) if isinstance(answer, Taken) else len(self._batch)
        again_at = self._now + (AGAIN_S if isinstance(answer, Taken) else RETRY_S)
        self._tries.update(self._batch[:count])
        for key in self._batch[:count]:
            self._left.pop(key, None)
            self._resting.pop(key, None)
            self._resting[key] = again_at
        if count < len(self._batch):
            self._targets.pop(self._turn % len(self._targets))
            self._offer(self._batch[count:])
        else:
            self._turn += 1

    def _stay(self, keys: set[bytes]) -> None:
        self._counts["left_behind"] += len(keys)
        self._end(keys)

    def _end(self, keys: set[bytes]) -> None:
        for key in keys:
            del self._tries[key]
            self._left.pop(key, None)
            self._resting.pop(key, None)

    def validate(self) -> None:
        seen = {key for keys in filter(None, self._seen) for key in keys}
        line = self._line.keys()
        waiting = [*line, *self._left, *self._resting]
        assert len(waiting) == len(set(waiting)) == self._waiting, "a key that waits twice"
        assert not set(waiting) - seen, "a key that it does not know"
        assert not self._tries.keys() - set(waiting), "tries of a key that has found its end"
        if self.on and not self.done:
            coming = {*self._came, *(self._disk_round.rest() if self._disk_round is not None else ())}
            coming.update(page.key for page in (self._round.rest() if self._round is not None else ()))
            here = {key for key, page in self._pages.index.items() if page.state is PageState.SEALED}
            here |= self._disk.index.records.keys()
            assert here <= seen | coming, "a page that nobody would ever be offered"
        assert (self._pages.arrived is not None) == (self.on and not self.done)
        assert self.on or not (waiting or seen or self.collecting or self._job or self.done)

    def view(self) -> dict[str, Any]:
        """For the status: pages by what became of them, over this life of the tier."""
        counts = self._counts
        return {
            "on": self.on,
            "done": self.done,
            "left": self._waiting,
            **{name: counts[name] for name in ("handed_over", "had_elsewhere", "left_behind")},
        }
