"""One of several connectors in vLLM's own MultiConnector: each hook has to find its way through the wrapper.

No tier runs here: what is looked at is what vLLM hands on, from both roles, whichever of the children comes first.
"""

from __future__ import annotations

import functools
import json
import warnings
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    # What torch and vLLM warn of while they are imported is theirs.
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    import torch
    from pegaflow.connector.connector import PegaKVConnector
    from pegaflow.connector.load_tracker import Load
    from pegaflow.connector.metadata import LayoutMetadata, ReportMetadata
    from pegaflow.connector.session import LeaseRef, LookupAnswer, SessionId
    from pegaflow.connector.work import RankReport, StepWork
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorMetadata
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from .sibling import SiblingConnector, SiblingHandshake
    from .test_connector_facade import LLAMA, cache_config, vllm_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ORDERS = {"first": ("pega", "sibling"), "last": ("sibling", "pega")}
SESSION = SessionId(1, 1)


def multi_config(model: Path, runtime_dir: Path, order: tuple[str, ...]) -> Any:
    children = {
        "pega": {
            "kv_connector": "PegaKVConnector",
            "kv_connector_module_path": "pegaflow.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"pegaflow.runtime_dir": str(runtime_dir), "pegaflow.request_timeout_ms": 100},
        },
        "sibling": {
            "kv_connector": "SiblingConnector",
            "kv_connector_module_path": SiblingConnector.__module__,
            "kv_role": "kv_both",
        },
    }
    return vllm_config(
        model,
        {"connectors": [children[name] for name in order]},
        kv_connector="MultiConnector",
        kv_connector_module_path=None,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(LLAMA))
    return directory


class Both:
    """The MultiConnector of the engine core and that of one worker, and the children of each by their name."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.core, self.worker = (
            KVConnectorFactory.create_connector(config, role, cache_config())
            for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
        )

    @staticmethod
    def pega(multi: Any) -> PegaKVConnector:
        (found,) = [child for child in multi.sub_connectors if isinstance(child, PegaKVConnector)]
        return found

    @staticmethod
    def sibling(multi: Any) -> SiblingConnector:
        (found,) = [child for child in multi.sub_connectors if isinstance(child, SiblingConnector)]
        return found

    def step(self) -> KVConnectorOutput:
        """What vLLM's worker does with a step's metadata (`kv_connector_model_runner_mixin.py`)."""
        output = SimpleNamespace(num_scheduled_tokens={}, kv_connector_block_state=None)
        meta = self.core.build_connector_meta(output)
        assert isinstance(meta, MultiKVConnectorMetadata)
        self.worker.bind_connector_metadata(meta)
        self.worker.handle_preemptions(meta)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(set())
        told = KVConnectorOutput(
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            kv_connector_stats=self.worker.get_kv_connector_stats(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        self.worker.clear_connector_metadata()
        return told


@pytest.fixture(params=list(ORDERS))
def both(request: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    made = Both(multi_config(model, tmp_path, ORDERS[request.param]))
    monkeypatch.setattr("vllm.distributed.parallel_state.get_tp_group", lambda: SimpleNamespace(rank_in_group=0))
    monkeypatch.setattr("vllm.distributed.parallel_state.get_pp_group", lambda: SimpleNamespace(rank_in_group=0))
    monkeypatch.setattr("vllm.distributed.kv_transfer.has_kv_transfer_group", lambda: True)
    monkeypatch.setattr("vllm.distributed.kv_transfer.get_kv_transfer_group", lambda: made.worker)
    yield made
    made.core.shutdown()
    made.worker.shutdown()


def caches() -> dict[str, torch.Tensor]:
    return {f"layers.{i}": torch.zeros(8, 2, 32, 64) for i in range(2)}


def test_the_sibling_gets_its_handshake_and_our_layout_comes_with_the_first_report(both: Both) -> None:
    both.worker.register_kv_caches(caches())
    metadata = both.worker.get_handshake_metadata()
    assert metadata == SiblingHandshake()
    both.core.set_xfer_handshake_metadata_pp_aware({(0, 0): metadata})
    assert both.sibling(both.core).seen.handshakes == [{(0, 0): metadata}]
    half = both.pega(both.core)._scheduler
    assert half is not None and not half.connected
    both.core.update_connector_output(both.step())
    assert half.connected
    assert half.keys.fingerprint != b""
    again = both.step()
    assert again.kv_connector_worker_meta is None, "a layout is told once"


def test_alone_it_uses_vllms_handshake(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    pega = both.pega(both.worker)
    pega.register_kv_caches(caches())
    monkeypatch.setattr("vllm.distributed.kv_transfer.get_kv_transfer_group", lambda: pega)
    assert isinstance(pega.get_handshake_metadata(), LayoutMetadata)


def test_metadata_and_reports_find_their_way(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    core, worker = both.pega(both.core), both.pega(both.worker)
    seen: list[Any] = []
    assert core._scheduler is not None
    refused = Load("r", (1,), None, (), (), False, "not_leased")
    monkeypatch.setattr(core._scheduler, "build", lambda output: StepWork(1, None, (refused,)))
    monkeypatch.setattr(core._scheduler, "reported", lambda report, received: seen.append((report, set(received))))
    worker.register_kv_caches(caches())
    both.sibling(both.worker).received = {"other"}
    told = both.step()
    assert told.finished_recving == {"r", "other"}
    assert told.failed_recving == {"r"}
    both.core.update_connector_output(told)
    ((report, received),) = seen
    assert report.failed == {"r": "not_leased"}
    assert received == {"r", "other"}, "vLLM tells every child of every receive"


def test_reports_of_two_ranks_add_up_inside_the_wrapper(both: Both) -> None:
    both.worker.register_kv_caches(caches())
    pega = both.pega(both.worker)
    metas = []
    for report in (RankReport({1: 1}), RankReport({1: 1, 2: 1}, {"r": "copy_failed"})):
        pega._collected.report = report
        metas.append(both.worker.build_connector_worker_meta())
    total = metas[0].aggregate(metas[1])
    (ours,) = [meta for meta in total.metadata if meta is not None]
    assert ours == ReportMetadata(RankReport({1: 2, 2: 1}, {"r": "copy_failed"}))


def test_statistics_reach_the_process_that_serves_them(both: Both) -> None:
    core, worker = both.pega(both.core), both.pega(both.worker)
    core._counters.add("lookups", label="hit")
    worker._counters.add("pages_saved", 3)
    worker._counters.observe("save_copy_seconds", 0.2)
    stats = both.step().kv_connector_stats
    total = stats.aggregate(both.core.get_kv_connector_stats())
    sent = MsgpackDecoder(dict[str, Any]).decode(MsgpackEncoder().encode(total.to_dict()))
    # This looks the class up by its name, which vLLM does not know by itself.
    KVConnectorLogging(both.config.kv_transfer_config).observe(sent)
    registry = CollectorRegistry()
    kinds = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    metrics = MultiConnector.build_prom_metrics(both.config, kinds, ["engine"], {0: ["0"]})
    metrics.observe(sent, 0)
    assert registry.get_sample_value("pegaflow_pages_saved_total", {"engine": "0"}) == 3
    assert registry.get_sample_value("pegaflow_lookups_total", {"engine": "0", "outcome": "hit"}) == 1
    assert registry.get_sample_value("pegaflow_save_copy_seconds_count", {"engine": "0"}) == 1


class OneAnswer:
    """In place of a bus: one lookup, answered with two pages."""

    def __init__(self) -> None:
        self.answers: list[LookupAnswer] = []
        self.released: list[LeaseRef] = []

    def session(self) -> SessionId:
        return SESSION

    def lookup(self, lookup: int, *rest: Any) -> bool:
        slots = array("I", [1, 2])
        self.answers.append(LookupAnswer(lookup, LeaseRef(SESSION, 5), 2, -1, slots, array("Q", [1, 1]), b"\0\1", ""))
        return True

    def drain(self) -> list[LookupAnswer]:
        answers, self.answers = self.answers, []
        return answers

    def loading(self, lease: LeaseRef) -> None:
        return

    def release(self, lease: LeaseRef) -> None:
        self.released.append(lease)

    def close(self) -> None:
        return


class Asking:
    """A request of vLLM's, as far as its hooks read it."""

    def __init__(self) -> None:
        self.request_id, self.num_prompt_tokens, self.num_tokens = "r", 70, 70
        self.prompt_token_ids = list(range(70))
        self.block_hashes = [bytes([i]) * 32 for i in range(2)]
        self.lora_request = self.cache_salt = self.prompt_embeds = self.kv_transfer_params = None
        self.mm_features: list[Any] = []
        self.resumable = self.skip_reading_prefix_cache = self.abort_immediately = False


@pytest.mark.parametrize("matched", [0, 40])
def test_the_first_that_has_something_loads_and_the_other_gives_its_lease_back(both: Both, matched: int) -> None:
    pega, bus = both.pega(both.core), OneAnswer()
    assert pega._scheduler is not None
    pega._scheduler._seed_agrees = lambda: True
    pega._scheduler.connect(bus, b"f" * 16)  # type: ignore[arg-type]
    both.sibling(both.core).seen.matched = matched
    asking: Any = Asking()
    both.core.on_new_request(asking)
    tokens, later = both.core.get_num_new_matched_tokens(asking, 0)
    ours = not matched or both.core.sub_connectors[0] is pega
    assert (tokens, later) == (64 if ours else 40, True)
    blocks = SimpleNamespace(get_block_ids=lambda: ([1, 2, 3],))
    both.core.update_state_after_alloc(asking, blocks, tokens)
    sources = both.core.get_external_cache_hit_sources(asking, tokens)
    if ours:
        assert sources == {CacheHitSource.HOST: 32, CacheHitSource.P2P: 32}
        assert pega._scheduler.loads.open_loads == 1
    else:
        assert bus.released == [LeaseRef(SESSION, 5)]
    both.core.update_connector_output(KVConnectorOutput(finished_recving={"r"}))
    assert bus.released == [LeaseRef(SESSION, 5)]
    assert both.core.request_finished_all_groups(asking, ([1, 2, 3],)) == (False, None)
    counted = pega._counters.take()
    assert counted.get("loads|done", 0) == int(ours)
    assert (pega._scheduler.loads.requests, pega._scheduler.loads.open_leases) == (0, 0)


def test_the_engine_goes_on_while_there_is_something_to_tell(both: Both) -> None:
    pega = both.pega(both.core)
    pega.get_kv_connector_stats()
    assert not both.core.has_pending_push_work()
    pega._counters.add("saves", label="written")
    assert both.core.has_pending_push_work()


def test_pool_finish_counts_and_reset(both: Both) -> None:
    pega = both.pega(both.core)
    pool = SimpleNamespace(num_gpu_blocks=8, get_num_free_blocks=lambda: 7)
    both.core.bind_kv_cache_manager(SimpleNamespace(block_pool=pool))
    assert pega._scheduler is not None and pega._scheduler._pool is pool
    assert both.worker.get_finished_count() is None, "every rank reports every receive"
    assert both.core.reset_cache() is True
    pool.get_num_free_blocks = lambda: 6
    assert both.core.reset_cache() is False
