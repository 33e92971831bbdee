"""One life of the pool, on the tier's side: opened or taken over, backed with memory, written down, left to the next life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pegaflow.common import clock, logs
from pegaflow.common.lifecycle import EX_SOFTWARE, Lifecycle, StartError
from pegaflow.common.pool import GRANULE, Pool, room
from pegaflow.common.private import private_directory
from pegaflow.common.slot_table import Identity
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.services.tier import events, old_pools
from pegaflow.services.tier.adoption import Adoption, Remains, readers_until
from pegaflow.services.tier.commands import Cut, ReadersUntil, Table
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.mover import lock as mover_lock
from pegaflow.services.tier.old_locks import OldLocks, boot_identity, directory_identity
from pegaflow.services.tier.page import Page
from pegaflow.services.tier.sessions import holder_word
from pegaflow.services.tier.slots import slab_granules

READY_S = 1.0
LEFT_OVER_S = 10.0
LET_GO_S = 5.0
LOOK_S = 0.25

log = logs.get(__name__)


class PoolLife:
    """Owns the pool, the locks of old members, and the tasks that adopt and back it. `result` takes events to the tier."""

    def __init__(self, config: TierConfig, lifecycle: Lifecycle, result: Callable[[events.Event], None]) -> None:
        self._config, self._lifecycle, self._result = config, lifecycle, result
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._locks: OldLocks | None = None
        self._on_backed: Callable[[int], None] | None = None

    # --- begin -------------------------------------------------------------------------------------------------------

    async def open(self, epoch: int) -> None:
        """Raises `LocalError` with `pool_busy`, `pool_too_large` or `unsafe_path`."""
        config = self._config
        private_directory(config.runtime_dir)
        private_directory(config.sessions_dir)
        slab, sessions = slab_granules(config.pool_size // GRANULE), directory_identity(config.sessions_dir)
        identity = Identity(config.pool_size, slab, boot_identity(), sessions)
        until = asyncio.get_running_loop().time() + LET_GO_S
        while not await self._opened(identity, epoch, until):
            await asyncio.sleep(LOOK_S)
        if self.pool.refused:
            log.warning("pool_refused", files=self.pool.refused)

    async def _opened(self, identity: Identity, epoch: int, until: float) -> bool:
        """False: there is no room before engines have let go of a pool that an earlier start has refused, which they will."""
        directory = self._config.pool_dir / self._config.node
        try:
            self.pool = Pool.open(directory, identity, epoch, warm=self._config.warm_restart)
            return True
        except LocalError as error:
            if error.code != ErrorCode.POOL_TOO_LARGE:
                raise
            held = await asyncio.to_thread(old_pools.still_mapped, directory)
            fits_then = identity.pool_bytes <= min(room(directory)) + sum(pool.size for pool in held)
            if not fits_then or asyncio.get_running_loop().time() >= until:
                raise LocalError(error.code, f"{error.text}{old_pools.explained(held)}") from None
            log.warning("pool_waits", text=f"{error.text}{old_pools.explained(held)}")
            return False

    def scan_locks(self) -> None:
        """Who of the old members lives; lock files of the dead go."""
        self._locks = OldLocks(self._config.sessions_dir, lambda word: self._result(events.LockFree(word)))

    async def remains(self) -> Remains:
        """What the life before has left. No mover of it can write any more once this returns. Raises `StartError`."""
        try:
            await asyncio.to_thread(mover_lock.end_left_overs, self._config.runtime_dir, LEFT_OVER_S)
        except (mover_lock.LockBusy, OSError) as error:
            raise StartError("left_over_mover", str(error)) from None
        except LocalError as error:
            raise StartError(error.code, error.text) from None
        assert self._locks is not None
        slabs, backed = dict(self.pool.slabs()), self.pool.allocated // GRANULE
        now, table, locks = clock.now(), self.pool.table, self._locks
        readers = readers_until(table.readers_until, now)
        return Remains(table.floor, now, slabs, backed, locks.held, frozenset(locks.dead), readers)

    def tell_backed(self, on_backed: Callable[[int], None]) -> None:
        """It is told how many bytes of the pool have memory, now and whenever there are more."""
        self._on_backed = on_backed
        on_backed(self.pool.allocated)

    def start(self, adoption: Adoption) -> None:
        """Adopts and backs the pool in the background; ready comes of it."""
        self._tasks = [asyncio.ensure_future(self._adopt(adoption)), asyncio.ensure_future(self._allocate())]

    async def _adopt(self, adoption: Adoption) -> None:
        """Takes the pages of the life before over, slab by slab; ready when it is done or has taken READY_S."""
        if not self.pool.adopted or not self.pool.allocated:
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for first, size in self.pool.slabs():
            if first not in adoption.unscanned:
                continue  # cut since
            if self._closing:
                return
            rows = await asyncio.to_thread(self.pool.rows, first, size) if size else []
            self._result(events.SlabFound(first, size, rows))
            while adoption.behind and not self._closing:
                await asyncio.sleep(0)  # what is read is taken over before more is read
            if loop.time() - begun > READY_S:
                self._lifecycle.set_ready()
        self._result(events.SlabsEnded())
        log.info("adopted_all", life=self.pool.table.life, seconds=round(loop.time() - begun, 3))
        self._lifecycle.set_ready()

    async def _allocate(self) -> None:
        """Backs the pool chunk by chunk; a new pool is ready after the first chunk."""
        while self.pool.allocated < self.pool.size and not self._closing:
            try:
                backed = await asyncio.to_thread(self.pool.allocate)
            except LocalError as error:
                log.error("pool_not_backed", code=error.code, text=error.text)
                self._lifecycle.set_reason(error.code, error.text)
                return
            self._result(events.Backed(backed // GRANULE))
            if self._on_backed is not None:
                self._on_backed(backed)
            if not self.pool.adopted or not self.pool.slabs():
                self._lifecycle.set_ready()
        while not self._closing and await asyncio.to_thread(self.pool.populate):
            pass

    # --- meanwhile ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Asks whether old members are dead."""
        assert self._locks is not None
        self._locks.look()

    def watched(self) -> set[str]:
        """Names of the lock files of old members."""
        assert self._locks is not None
        return self._locks.names()

    def attached(self, nonce: bytes) -> None:
        """A process with this lock is a member now, and is watched as one."""
        assert self._locks is not None
        self._locks.forget(holder_word(nonce))

    def store(self, command: Table | Cut | ReadersUntil) -> None:
        """Idempotent."""
        table = self.pool.table
        if isinstance(command, ReadersUntil):
            table.readers_until = command.at
            return
        if isinstance(command, Cut):
            table.cut(command.first, command.size)
            return
        slot, generation, entry, _ = command
        if generation and generation != table.generation(slot):  # equal: carried out a second time
            table.raise_generation(slot, generation)
        table.store(slot, entry)

    def store_again(self, command: Table | Cut | ReadersUntil) -> None:
        """What follows relies on the table (docs/protocol.md 1.5): without it this life ends, and the next trusts none of it."""
        try:
            self.store(command)
        except Exception:
            log.exception("table_not_stored")
            self.pool.table.void()
            raise SystemExit(EX_SOFTWARE) from None

    # --- end ---------------------------------------------------------------------------------------------------------

    def store_ages(self, pages: Iterable[Page]) -> None:
        """Leaves the order of use to the next life: the table has only that of saving."""
        ages: dict[int, int] = {}
        for page in sorted((page for page in pages if page.used_at), key=lambda page: page.used_at):
            age = ages.setdefault(page.used_at, len(ages) + 1)
            for slot in page.slots:
                self.pool.table.age(slot, age)

    async def stop(self) -> None:
        """Returns when nothing works on the pool in the background any more."""
        self._closing = True
        await asyncio.gather(*self._tasks)

    def close(self, *, in_use: bool = False) -> None:
        """Leaves the files to the next life, unless warm restarts are off. Safe after a failed start.

        `in_use`: a call that never came back may still read or write slots. Mapping and lock then go with the process: the next
        life must not have the pool before.
        """
        if self._locks is not None:
            self._locks.close()
        if not hasattr(self, "pool"):
            return
        if in_use:
            self.pool.leave(keep=self._config.warm_restart)
        else:
            self.pool.close(keep=self._config.warm_restart)
