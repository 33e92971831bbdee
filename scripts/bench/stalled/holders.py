"""Who holds very many pages: leases, grants, pins that wait, and what their end costs."""

from __future__ import annotations

from typing import Any

from pegaflow.common.lifecycle import collect_little_and_often
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.attach import Alive
from pegaflow.common.wire.messages.inspection import Grants, Inspect, Leases
from pegaflow.services.tier import events

from stalled.recorder import Recorder
from stalled.tier import EPOCH, Tier, keys_of

LOOKUP_KEYS = 750


def run(pages: int) -> list[dict[str, Any]]:
    collect_little_and_often()
    recorder = Recorder()
    tier = Tier(pages, recorder)
    tier.engine("p")
    tier.engine("d")
    keys = keys_of(pages)
    tier.fill(keys[: pages * 3 // 4])
    lend(tier, recorder, keys[: pages * 3 // 4])
    grant(tier, recorder, pages // 20)
    return recorder.rows


def lend(tier: Tier, recorder: Recorder, keys: list[bytes]) -> None:
    count = len(keys) // LOOKUP_KEYS
    leases = [tier.lookup(keys[i * LOOKUP_KEYS : (i + 1) * LOOKUP_KEYS], "d").lease for i in range(count)]
    one = tier.members["d", "scheduler"]

    def alive() -> None:
        beat = Alive(EPOCH, 1 << 40, 0, u64s(), u64s(leases), u64s(), 1 << 40)
        tier.feed(events.Published(one.session, one.member, 0, one.token, beat))

    recorder.case(f"alive with {count} leases of {LOOKUP_KEYS} pages", alive, 3)
    recorder.case("status with them", lambda: recorder.call("dump", tier.state.dump), 3)
    recorder.case("their list", lambda: tier.ask(Leases()), 3)
    recorder.case("page inspect of 64 leased pages", lambda: tier.ask(Inspect(keys[:64])), 3)
    recorder.case("a tick with them", lambda: tier.tick(), 3)

    def die() -> None:
        tier.dies("d", "scheduler")
        tier.ticks()

    recorder.case("their engine's scheduler half dies", die)


def grant(tier: Tier, recorder: Recorder, count: int) -> None:
    for seed in range(max(1, count // 512)):
        tier.intent(keys_of(512, 100 + seed))
    open_pages = sum(len(one.pages) for one in tier.state.saves.grants.values())
    recorder.case(f"grants of {open_pages} pages: status", lambda: recorder.call("dump", tier.state.dump), 3)
    recorder.case("their list", lambda: tier.ask(Grants()), 3)
    recorder.case("their engine falls silent", lambda: tier.ticks(3.0))

    def die() -> None:
        tier.dies("p", "rank")
        tier.ticks()

    recorder.case("their rank dies", die)
