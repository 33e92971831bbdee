"""Handing over, pure: a tier that leaves for good asks others to fetch what nobody else has (docs/protocol.md 3.6).

    which nodes are up? ▶ who has the next keys? ▶ take these, from me ▶ who has them now? …

The last word on a key is the catalogue's: it is handed over when another node is known to have it. Others take what fits into
their free memory, so that no page of theirs goes for it; what fits nowhere stays behind and is counted. Most recently used first.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import NO_OWNER, Located, NodeList
from pegaflow.common.wire.messages.transfer import Taken
from pegaflow.services.tier.commands import AskNodes, Command, Locate, Log, Offer
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pages import Pages

BATCH_KEYS = 256
BATCH_BYTES = 64 << 20
PAUSE_S = 0.25
"""Between two rounds: what was taken arrives meanwhile."""
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
        self._left: OrderedDict[bytes, None] = OrderedDict()
        self._seen: set[bytes] = set()
        self._tries: Counter[bytes] = Counter()
        self._again_at: dict[bytes, float] = {}
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

    def stop(self) -> None:
        """What others have begun to fetch they go on with."""
        self.on = self.done = False
        self._left.clear()
        self._seen.clear()
        self._tries.clear()
        self._again_at.clear()
        self._job = self._alone = 0

    def tick(self, now: float) -> None:
        self._now = now
        if not self.on or self.done or self._job or now < self._next_at:
            return
        self._next_at = now + PAUSE_S
        self._collect()
        if self.done:
            return
        if not self._left:
            return
        self._job = next(self._jobs)
        self._out.append(AskNodes(self._job))

    def _collect(self) -> None:
        """What is here, most recently used first; once that is through, what has come since."""
        if self._left:
            return
        sealed = [page for page in self._pages.index.values() if page.state is PageState.SEALED and page.key not in self._seen]
        sealed.sort(key=lambda page: page.used_at, reverse=True)
        below = [key for key in self._pages.below if key not in self._seen and key not in self._pages.index]
        self._left.update(dict.fromkeys([*(page.key for page in sealed), *below]))
        self._seen.update(self._left)
        if not self._left and not self._growing():
            self.done = True
            self._out.append(Log("handed_over", self.view()))

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
        """Keys of one shape, from the head of what is left."""
        batch: list[bytes] = []
        shape: tuple[int, tuple[int, ...]] | None = None
        size = 0
        for key in list(itertools.islice(self._left, BATCH_KEYS)):
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
        due = [key for key in keys if self._again_at.get(key, 0.0) <= self._now]
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
        """What was taken goes to the end of the line, to be looked for; for the rest the next node is asked at once.

        An error says nothing of room: after it the next node is asked a round later.
        """
        if not job or job != self._job:
            return
        self._job = 0
        count = min(answer.count, len(self._batch)) if isinstance(answer, Taken) else len(self._batch)
        again_at = self._now + (AGAIN_S if isinstance(answer, Taken) else RETRY_S)
        self._tries.update(self._batch[:count])
        for key in self._batch[:count]:
            self._left.move_to_end(key)
            self._again_at[key] = again_at
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
            del self._left[key], self._tries[key]
            self._again_at.pop(key, None)

    def validate(self) -> None:
        assert not self._left.keys() - self._seen, "a key that it does not know"
        assert not self._tries.keys() - self._left.keys(), "tries of a key that has found its end"
        assert not self._again_at.keys() - self._left.keys(), "an offer of a key that has found its end"
        assert self.on or not (self._left or self._job or self.done)

    def view(self) -> dict[str, Any]:
        """For the status: pages by what became of them, over this life of the tier."""
        counts = self._counts
        return {
            "on": self.on,
            "done": self.done,
            "left": len(self._left),
            **{name: counts[name] for name in ("handed_over", "had_elsewhere", "left_behind")},
        }
