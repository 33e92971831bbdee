"""Lock probes of attached processes: every 200 ms the kernel says who is dead (docs/protocol.md 1.2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pegaflow.common.locks import LockProbe

PROBE_S = 0.2


class Probes:
    """Owns one descriptor per attached process."""

    def __init__(self, directory: Path, dead: Callable[[int, int], None], clock: Callable[[], float]) -> None:
        self._directory, self._dead, self._clock = directory, dead, clock
        self._probes: dict[tuple[int, int], LockProbe] = {}

    def __len__(self) -> int:
        return len(self._probes)

    def names(self) -> set[str]:
        """Of the lock files that are asked."""
        return {probe.name for probe in self._probes.values()}

    def open(self, name: str, nonce: bytes, pid: int, gpu: bool) -> LockProbe:
        """Raises `RemoteError`: `lock_not_visible` or `bad_member`."""
        return LockProbe(self._directory, name, nonce, pid if gpu else 0)

    def keep(self, session: int, member: int, probe: LockProbe) -> None:
        """Watches this member from now on; a second probe of the same member is closed."""
        if (session, member) in self._probes:
            probe.close()
        else:
            self._probes[session, member] = probe

    def look(self) -> None:
        """Tells who is dead."""
        for (session, member), probe in list(self._probes.items()):
            if probe.dead(self._clock()):
                self._dead(session, member)

    def forget(self, session: int, member: int, unlink: bool) -> None:
        probe = self._probes.pop((session, member), None)
        if probe is not None:
            if unlink:
                probe.unlink()
            probe.close()

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()
        self._probes.clear()
