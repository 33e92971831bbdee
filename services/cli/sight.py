"""What the tiers that answer know of some keys: copies now, and stories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.inspection import MAX_KEYS, NEVER, PageFlag, PageIs, Step
from pegaflow.services.cli.cluster import Cluster
from pegaflow.services.cli.column import Tone

_IN_WORDS = {
    Step.GRANTED: "intended, slots granted",
    Step.NO_SPACE: "intended, no space",
    Step.REFUSED: "intended, refused",
    Step.ABANDONED: "save abandoned",
    Step.STALE: "promise not believed any more",
    Step.SEALED: "sealed",
    Step.DUPLICATE: "written twice, the first copy stays",
    Step.EVICTED: "evicted from memory",
    Step.DISK_WRITTEN: "written to disk",
    Step.DISK_EVICTED: "evicted from disk",
    Step.DISK_READ: "read back from disk",
    Step.DISK_LOST: "lost on disk",
    Step.FETCHED: "fetched",
    Step.FETCH_FAILED: "fetch failed",
    Step.ADOPTED: "taken over from the life before",
    Step.DISK_FOUND: "found on disk at the start",
    Step.BAD_CHECKSUM: "dropped, bad checksum",
    Step.HASH_FAILED: "dropped, could not be checksummed",
}


class Copy(NamedTuple):
    """What one tier knows of a key. `level`: memory, disk, memory+disk, or empty; times in ms, None: never, no end."""

    node: str
    state: str
    level: str
    verified: bool
    replica: bool
    kept: bool
    size_bytes: int
    shards: int
    holds: int
    leases: int
    pins: int
    used_ms: int | None
    kept_ms: int | None
    checksums: list[str]
    engine: str
    request: str


class Moment(NamedTuple):
    """One step of a story, on one node."""

    node: str
    ago_ms: int
    step: Step
    who: str

    def words(self) -> str:
        return _IN_WORDS.get(self.step, str(self.step))


class Past(NamedTuple):
    """The stories of one key from all tiers, the oldest step first; how far back each tier remembers."""

    moments: list[Moment]
    reaches_ms: dict[str, int]


def well(state: Any) -> Tone:
    """Colour of a page's state."""
    return {"sealed": Tone.GOOD, "pending": Tone.DOUBT, "fetching": Tone.DOUBT, "unknown": Tone.PLAIN}.get(str(state), Tone.BAD)


async def copies(cluster: Cluster, keys: Sequence[bytes]) -> dict[bytes, list[Copy]]:
    """Per key the tiers that know it now."""
    found: dict[bytes, list[Copy]] = {key: [] for key in keys}
    for part in _parts(keys):
        for peer, answer in await cluster.ask_each(cluster.tiers, inspection.Inspect(part), inspection.Inspected):
            if len(answer.states) == len(part):
                for key, copy in zip(part, seen(peer.node, answer), strict=True):
                    if copy.state != "unknown":
                        found[key].append(copy)
    return found


def _parts(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    """At most MAX_KEYS of one width."""
    by_width: dict[int, list[bytes]] = {}
    for key in dict.fromkeys(keys):
        by_width.setdefault(len(key), []).append(key)
    for mine in by_width.values():
        for at in range(0, len(mine), MAX_KEYS):
            yield mine[at : at + MAX_KEYS]


def seen(node: str, answer: inspection.Inspected) -> list[Copy]:
    """One copy per key of the question, `unknown` where there is none."""
    found, at = [], 0
    for i, state in enumerate(answer.states):
        flags = PageFlag(answer.flags[i])
        levels = [name for flag, name in ((PageFlag.MEMORY, "memory"), (PageFlag.DISK, "disk")) if flag in flags]
        sums = [answer.checksums[16 * n : 16 * n + 16].hex() for n in range(at, at + answer.sums[i])]
        at += answer.sums[i]
        found.append(
            Copy(
                node,
                PageIs(state).name.lower() if state in set(PageIs) else str(state),
                "+".join(levels),
                PageFlag.VERIFIED in flags,
                PageFlag.REPLICA in flags,
                PageFlag.KEPT in flags,
                answer.sizes[i],
                answer.shards[i],
                answer.holds[i],
                answer.leases[i],
                answer.pins[i],
                time(answer.used_ms[i]),
                time(answer.kept_ms[i]),
                sums,
                answer.engines[i],
                answer.requests[i],
            )
        )
    return found


async def past(cluster: Cluster, key: bytes) -> Past:
    """What became of one key, as far as the tiers that answer remember."""
    found, reaches = list[Moment](), {}
    for peer, answer in await cluster.ask_each(cluster.tiers, inspection.Story(key), inspection.Told):
        reaches[peer.node] = answer.reaches_ms
        found += moments(peer.node, answer)
    return Past(sorted(found, key=lambda moment: -moment.ago_ms), reaches)


def moments(node: str, answer: inspection.Told) -> list[Moment]:
    """The steps that this version knows."""
    columns = zip(answer.ages_ms, answer.steps, answer.whos, strict=True)
    return [Moment(node, ago, Step(step), who) for ago, step, who in columns if step in set(Step)]


def time(value: int) -> int | None:
    """A number of a column of times; None: it never was, or has no end."""
    return None if value == NEVER else value
