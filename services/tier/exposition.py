"""The tier's metrics: read from the pure state when Prometheus asks, so that counting costs one dictionary increment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.disk.level import FAILED
from pegaflow.services.tier.state import TierState
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_ENDED = "ended_"
COUNTERS = {
    "sealed": ("pages_sealed", "pages saved by engines of this node and sealed"),
    "sealed_bytes": ("sealed_bytes", "bytes of those pages"),
    "fetched": ("pages_fetched", "pages read from other tiers and sealed"),
    "fetched_bytes": ("fetched_bytes", "bytes of those pages"),
    "fetch_failed": ("pages_fetch_failed", "pages that an owner did not deliver"),
    "bad_checksum": ("pages_bad_checksum", "pages that arrived with other bytes than promised"),
    "granted": ("pages_granted", "slots granted to engines"),
    "abandoned": ("pages_abandoned", "granted slots that were not written"),
    "evicted": ("pages_evicted", "pages evicted to make room"),
    "no_space": ("no_space", "pages refused for want of space"),
    "refused": ("pages_refused", "intents for keys whose writers are not all attached"),
    "duplicates": ("duplicates", "pages sealed twice, the second copy dropped"),
    "pinned": ("pages_pinned", "pages pinned for other tiers"),
    "lookups": ("lookups", "lookups answered"),
    "lookup_us": ("lookup_microseconds", "time from lookups to their answers, waits included, in all"),
    "asked_pages": ("asked_pages", "pages that lookups asked for"),
    "hit_pages": ("hit_pages", "pages found by lookups"),
    "hit_remote": ("hit_pages_remote", "of those, pages read from other tiers for that lookup"),
    "hit_disk": ("hit_pages_disk", "of those, pages read from disk for that lookup"),
    "stale_words": ("stale_words", "written or abandoned for slots that are not the sender's any more"),
    "foreign_publications": ("foreign_publications", "publications without a valid session"),
    "reads_given_up": ("reads_given_up", "READs past their deadline, their slots in quarantine"),
    "leases_expired": ("leases_expired", "leases that ran out"),
    "members_dead": ("members_dead", "attached processes proven dead"),
    "adopted": ("pages_adopted", "pages taken over from the tier before"),
    "adopted_bytes": ("adopted_bytes", "bytes of those pages"),
    "adopted_bad": ("pages_adopted_bad", "of those, pages whose checksum did not fit at their first use"),
    "refused_entries": ("refused_entries", "slots of the tier before that were not taken over: torn, incomplete, doubtful"),
    "old_slots_freed": ("old_slots_freed", "slots of the tier before that are quiet since"),
    "verified": ("pages_verified", "checksums taken again and found to fit: at first use, on load, by the scrubber"),
    "verified_bad": ("pages_verified_bad", "pages dropped because their checksum did not fit any more"),
    "scrubbed": ("pages_scrubbed", "pages that the scrubber looked at"),
    "disk_written": ("disk_pages_written", "pages written to disk"),
    "disk_written_bytes": ("disk_written_bytes", "bytes of those pages"),
    "disk_read": ("disk_pages_read", "pages read from disk, verified and sealed"),
    "disk_read_bytes": ("disk_read_bytes", "bytes of those pages"),
    "disk_not_stored": ("disk_pages_not_stored", "pages evicted from memory that are not on disk"),
    "disk_left_to_owner": ("disk_pages_left_to_owner", "replicas evicted from memory and not written: another tier has them"),
    "disk_write_failed": ("disk_pages_write_failed", "pages that could not be written to disk"),
    "disk_read_failed": ("disk_pages_read_failed", "pages that could not be read from disk, and are gone"),
    "disk_bad_checksum": ("disk_pages_bad_checksum", "pages that came from disk with other bytes, and are gone"),
    "disk_evicted": ("disk_pages_evicted", "pages that left the disk to make room"),
    "disk_found": ("disk_pages_found", "pages that an earlier life had left on disk"),
    "disk_wrong_key": ("disk_pages_wrong_key", "pages that an earlier life had left on disk under another key, and are gone"),
    "disk_given_up": ("disk_reads_given_up", "disk reads past their deadline, their slots in quarantine"),
    "disk_hangs": ("disk_hangs", "times that no write to disk ended for seconds while some were under way"),
    "refused_draining": ("pages_refused_draining", "pages not granted because the node drains"),
    "handed_over": ("pages_handed_over", "pages that another node has taken from this one, which leaves"),
    "left_behind": ("pages_left_behind", "pages that no other node took: no free memory there, or it did not get them"),
    "promises_stale": ("promises_stale", "pending pages of sessions that fell silent"),
}


class TierCollector(Collector):
    """Shows one `TierState`, its mover and its metaservers; the registry keeps it for the life of the process.

    `metaservers`: how many there are, and how many know this node.
    """

    def __init__(
        self,
        state: TierState,
        mover: Callable[[], Mapping[str, int] | None] = lambda: None,
        metaservers: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._state, self._mover, self._metaservers = state, mover, metaservers

    def collect(self) -> Iterable[Metric]:
        state = self._state
        for name, (metric, text) in COUNTERS.items():
            yield CounterMetricFamily(f"pegaflow_tier_{metric}", text, value=state.counts[name])
        allocator = state.pages.allocator
        metaservers, knowing = self._metaservers()
        gauges = {
            "metaservers": ("metaservers that the node says hello to", metaservers),
            "metaservers_known": ("of those, whose copy of the node's catalogue is whole", knowing),
            "pool_backed_bytes": ("bytes of the pool that have memory", allocator.backed * GRANULE),
            "pool_free_bytes": ("bytes that no page occupies", allocator.free_granules() * GRANULE),
            "pages_sealed_now": ("pages visible to lookups", state.pages.announced.sealed),
            "pages_pending_now": ("pages promised and not sealed", state.pages.announced.pending),
            "sessions": ("attached engines", len(state.sessions.by_number)),
            "leases": ("open leases and pins", len(state.leases.open)),
            "leases_loading": ("leases that an engine copies from", state.leases.under_load),
            "grants": ("open grants", len(state.saves.grants)),
            "lookups_waiting": ("lookups without an answer", len(state.lookups.open)),
            "old_members_awaited": ("processes of earlier sessions that keep slots out of use", state.adoption.waiting_for),
            "held_slots": ("slots that such a process may still write", len(state.pages.held)),
            "draining": ("1 while the node drains: it takes no saves", int(state.draining.on)),
            "fetches": ("fetches under way, those in quarantine included", len(state.fetches.open)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"pegaflow_tier_{name}", text, value=value)
        yield from self._movers()
        yield from self._disk()
        yield from self._namespaces()

    def _movers(self) -> Iterable[Metric]:
        counts = self._mover() or {}
        gauges = {
            "movers": ("processes that read from other tiers: 1, or 2 while one is being replaced", counts.get("movers", 0)),
            "mover_reads": ("READs under way", counts.get("open", 0)),
            "mover_quarantined_bytes": ("bytes that a given-up READ may still write", counts.get("quarantined_bytes", 0)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"pegaflow_tier_{name}", text, value=value)
        spawned = ("pegaflow_tier_mover_starts", "movers that were started, the first one included")
        yield CounterMetricFamily(*spawned, value=counts.get("spawned", 0))
        hung = ("pegaflow_tier_mover_hangs", "movers that were killed because they did not answer")
        yield CounterMetricFamily(*hung, value=counts.get("hung", 0))
        ended = CounterMetricFamily("pegaflow_tier_mover_reads_ended", "READs by how they ended", labels=["outcome"])
        for name, count in counts.items():
            if name.startswith(_ENDED):
                ended.add_metric([name.removeprefix(_ENDED)], count)
        yield ended

    def _disk(self) -> Iterable[Metric]:
        disk, counts = self._state.disk, self._state.counts
        gauges = {
            "disk_capacity_bytes": ("bytes that the disk level may have; 0: there is none", disk.index.capacity),
            "disk_taken_bytes": ("bytes of its segments", disk.index.taken),
            "disk_pages": ("pages on disk", len(disk.index.records)),
            "disk_writing_bytes": ("bytes of pages on their way to disk", disk.writing_bytes),
            "disk_hanging": ("1 while a read is past its deadline or no write ends", int(disk.hangs)),
            "disk_reading_bytes": ("bytes of pages on their way from disk", disk.reading_bytes),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"pegaflow_tier_{name}", text, value=value)
        failures = CounterMetricFamily("pegaflow_tier_disk_failures", "failed disk jobs and pages, by code", labels=["code"])
        for name, count in counts.items():
            if name.startswith(FAILED):
                failures.add_metric([name.removeprefix(FAILED)], count)
        yield failures

    def _namespaces(self) -> Iterable[Metric]:
        shares = self._state.pages.space.shares
        used = GaugeMetricFamily("pegaflow_tier_namespace_bytes", "bytes of the pool that a namespace has", labels=["namespace"])
        quota = GaugeMetricFamily("pegaflow_tier_namespace_quota_bytes", "bytes that it may have", labels=["namespace"])
        share = GaugeMetricFamily("pegaflow_tier_namespace_share_bytes", "bytes that nobody takes from it", labels=["namespace"])
        kept = GaugeMetricFamily(
            "pegaflow_tier_namespace_kept_bytes", "bytes of it that are kept on request", labels=["namespace"]
        )
        for name, space in shares.by_name.items():
            label = [name.hex()]
            used.add_metric(label, space.used * GRANULE)
            quota.add_metric(label, space.quota * GRANULE)
            share.add_metric(label, shares.share(space) * GRANULE)
            kept.add_metric(label, space.kept * GRANULE)
        yield from (used, quota, share, kept)
