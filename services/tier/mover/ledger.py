"""READs that may still land: of which peer, in which mover, and how many bytes nobody waits for any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pegaflow.services.tier.mover.events import MoverNumber


@dataclass(slots=True)
class Job:
    """One READ that was posted. `size`: bytes of its destination."""

    peer: str
    mover: MoverNumber
    size: int
    given_up_at: float | None = None
    # Set when the READ failed without proof that nothing lands any more: the outcome waits for the mover's end.
    failed: str | None = None

    @property
    def given_up(self) -> bool:
        return self.given_up_at is not None

    @property
    def healthy(self) -> bool:
        """Somebody waits for it."""
        return not self.given_up and self.failed is None


class Ledger:
    """Every open job, by number and by peer."""

    __slots__ = ("_jobs", "_peers")

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._peers: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def __getitem__(self, number: int) -> Job:
        return self._jobs[number]

    def get(self, number: int) -> Job | None:
        return self._jobs.get(number)

    def items(self) -> Iterator[tuple[int, Job]]:
        return iter(self._jobs.items())

    def add(self, number: int, job: Job) -> None:
        self._jobs[number] = job
        self._peers.setdefault(job.peer, set()).add(number)

    def pop(self, number: int) -> Job:
        """Nothing of it can land any more."""
        job = self._jobs.pop(number)
        mine = self._peers[job.peer]
        mine.discard(number)
        if not mine:
            del self._peers[job.peer]
        return job

    def of_peer(self, peer: str) -> int:
        """How many READs of this peer are open."""
        return len(self._peers.get(peer, ()))

    def busy(self, peer: str) -> bool:
        """This peer has a READ that nobody waits for and that has not ended."""
        return any(not self._jobs[number].healthy for number in self._peers.get(peer, ()))

    @property
    def healthy(self) -> int:
        """READs that somebody waits for."""
        return sum(job.healthy for job in self._jobs.values())

    def quarantined(self, numbers: Iterable[int]) -> int:
        """Bytes of those of these jobs that nobody waits for."""
        return sum(job.size for job in map(self._jobs.__getitem__, numbers) if not job.healthy)

    def validate(self) -> None:
        """Raises AssertionError when the parts disagree."""
        filed = sorted((number, peer) for peer, mine in self._peers.items() for number in mine)
        assert filed == sorted((number, job.peer) for number, job in self._jobs.items()), "a job without its peer"
        assert all(self._peers.values())
