"""The class that vLLM loads, with vLLM's own configuration objects and metrics, and without a tier."""

import functools
import json
import logging
import pickle
import re
import warnings
from array import array
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
    from pegaflow.connector.engine import describe_engine
    from pegaflow.connector.load_tracker import Load
    from pegaflow.connector.metadata import LayoutMetadata, ReportMetadata, StepMetadata
    from pegaflow.connector.options import StartRefused, parse_options
    from pegaflow.connector.refusals import refuse_unsupported
    from pegaflow.connector.session import AttachRefused, AttachState, IntentRef, LeaseRef, SessionId
    from pegaflow.connector.stats import COUNTERS, GAUGES, SECONDS, PegaStats
    from pegaflow.connector.work import RankLayout, RankReport, SaveOrder, SaveWork, StepWork, layouts_by_shard
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, supports_hma
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MLAAttentionSpec,
        UniformTypeKVCacheSpecs,
    )
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(LLAMA))
    return directory


def vllm_config(model: Path, extra: dict[str, Any], policy: str = "recompute", **fields: Any) -> Any:
    transfer = {
        "kv_connector": "PegaKVConnector",
        "kv_connector_module_path": "pegaflow.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
        **fields,
    }
    args = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        block_size=32,
        max_model_len=128,
        kv_transfer_config=transfer,
    )
    return args.create_engine_config()


def cache_config(**fields: Any) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32, **fields)
    group = KVCacheGroupSpec(["layers.0", "layers.1"], spec)
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group], hash_block_size=32)


def make(config: Any, cache: KVCacheConfig | None = None) -> PegaKVConnector:
    made = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache or cache_config())
    assert isinstance(made, PegaKVConnector)
    return made


@pytest.fixture(scope="module")
def config(model: Path) -> Any:
    return vllm_config(model, {"pegaflow.pd_tail_save": True})


def test_vllm_makes_it_and_it_reads_vllms_configuration(config: Any, model: Path) -> None:
    connector = make(config)
    assert supports_hma(connector)
    assert not connector.requires_kv_delivery
    engine = describe_engine(config, cache_config())
    assert (engine.block_size, engine.hash_block_size, engine.num_blocks) == (32, 32, 8)
    assert (engine.tp, engine.pp, engine.mla, engine.speculation) == (1, 1, False, None)
    assert [layer.kind for layer in engine.groups[0]] == ["FullAttentionSpec"] * 2
    assert engine.model_path == model
    assert engine.dtype == "float32"


def test_sparse_mla_with_its_indexer_is_one_group_that_is_taken(config: Any) -> None:
    specs = {
        f"layers.{i}.attn": MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=656, dtype=torch.uint8) for i in range(2)
    } | {"layers.0.indexer": MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype=torch.uint8)}
    group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=specs))
    engine = describe_engine(
        config, KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group], hash_block_size=64)
    )
    assert engine.block_size == 64
    assert [(layer.name, layer.kind, layer.window, layer.compressed) for layer in engine.groups[0]] == [
        (name, "MLAAttentionSpec", None, False) for name in specs
    ]
    refuse_unsupported(parse_options({}, {}), engine)


@pytest.mark.parametrize(
    ("extra", "fields", "code"),
    [({"pegaflow.mod": "read"}, {}, "unknown_option"), ({}, {"sliding_window": 64}, "sliding_window")],
)
def test_what_must_not_run_does_not_start(model: Path, extra: dict[str, Any], fields: dict[str, Any], code: str) -> None:
    with pytest.raises(StartRefused, match=f"^{code}: "):
        make(vllm_config(model, extra), cache_config(**fields))


def test_a_fault_point_that_does_not_exist_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEGAFLOW_FAULT", "connector.load.before_copie:kill")
    with pytest.raises(StartRefused, match=r"^bad_config: .*the nearest is connector\.load\.before_copy"):
        make(vllm_config(model, {}))


def test_vllms_default_failure_policy_is_refused(model: Path) -> None:
    with pytest.raises(StartRefused, match="set it to recompute"):
        make(vllm_config(model, {}, policy="fail"))


class Broken:
    """Everything it is asked raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("broken on purpose")


def test_no_hook_raises(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = make(config)
    monkeypatch.setattr(connector, "_scheduler", Broken())
    monkeypatch.setattr(connector, "_rank", Broken())
    request: Any = SimpleNamespace(request_id="r")
    connector.on_new_request(request)
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    connector.update_state_after_alloc(request, Broken(), 5)
    assert connector.build_connector_meta(Broken()) == StepMetadata(StepWork(0))
    assert connector.get_external_cache_hit_sources(request, 5) == {}
    assert connector.reset_cache() is False
    connector.update_connector_output(Broken())
    assert connector.request_finished_all_groups(request, ([1],)) == (False, None)
    assert connector.has_pending_push_work() is False
    meta = StepMetadata(StepWork(1, SaveWork(IntentRef(SessionId(1, 1), 1), ())))
    connector.bind_connector_metadata(meta)
    connector.handle_preemptions(meta)
    connector.start_load_kv(None)
    connector.wait_for_save()
    assert connector.get_transfer_results(set()).finished_recving == set()
    assert connector.get_block_ids_with_load_errors() == set()
    assert connector.build_connector_worker_meta() is None
    connector._counters.watch("scheduler", dict)
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert {name: count for name, count in stats.data.items() if name.startswith("hook_errors")} == {
        f"hook_errors|{hook}": 1
        for hook in (
            "on_new_request",
            "get_num_new_matched_tokens",
            "update_state_after_alloc",
            "build_connector_meta",
            "get_external_cache_hit_sources",
            "reset_cache",
            "update_connector_output",
            "request_finished",
            "has_pending_push_work",
            "handle_preemptions",
            "start_load_kv",
            "wait_for_save",
            "get_transfer_results",
        )
    }
    connector.shutdown()


def test_without_a_tier_the_engine_goes_on(
    config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Bus:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def wait_attached(self, timeout_s: float) -> AttachState:
            return AttachState.ABSENT

        def session(self) -> None:
            return None

    connector = make(config)
    monkeypatch.setattr("pegaflow.connector.assembly.SchedulerBus", Bus)
    logger = logging.getLogger("vllm.pegaflow")
    logger.addHandler(caplog.handler)
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): LayoutMetadata(RankLayout(0, b"d" * 16, 100))})
    logger.removeHandler(caplog.handler)
    assert "tier_absent" in caplog.text
    assert "starts without cache" in caplog.text


def test_a_refusal_by_the_tier_stops_the_start(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Bus:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def wait_attached(self, timeout_s: float) -> AttachState:
            raise AttachRefused("layout_mismatch", "pages of 100 bytes here, of 200 there")

        def close(self) -> None:
            closed.append(True)

    connector = make(config)
    monkeypatch.setattr("pegaflow.connector.assembly.SchedulerBus", Bus)
    with pytest.raises(AttachRefused, match="layout_mismatch: pages of 100 bytes here"):
        connector.set_xfer_handshake_metadata_pp_aware({(0, 0): LayoutMetadata(RankLayout(0, b"d" * 16, 100))})
    assert closed == [True]


def test_layouts_per_shard() -> None:
    a, b = RankLayout(0, b"a", 1), RankLayout(1, b"b", 2)
    assert layouts_by_shard([b, a], 2) == [a, b]
    assert layouts_by_shard([a, RankLayout(0, b"a", 1)], 1) == [a]
    with pytest.raises(StartRefused, match="layouts_differ"):
        layouts_by_shard([a, RankLayout(0, b"c", 1)], 1)
    with pytest.raises(StartRefused, match="layouts_missing"):
        layouts_by_shard([a], 2)


def test_what_crosses_processes_survives_it() -> None:
    lease = LeaseRef(SessionId(1, 2), 3)
    load = Load("r", (1, 2), lease, array("I", [4, 5]), array("Q", [6, 7]), True, "")
    work = StepWork(1, SaveWork(IntentRef(SessionId(1, 2), 9), (SaveOrder(1, 0, (3,), False),)), (load,))
    for thing in (StepMetadata(work), ReportMetadata(RankReport({1: 1}, {"r": "x"})), LayoutMetadata(RankLayout(0, b"d", 5))):
        assert pickle.loads(pickle.dumps(thing)) == thing  # noqa: S301, as vLLM does between its own processes


def test_reports_of_ranks_add_up() -> None:
    total = ReportMetadata(RankReport({1: 1})).aggregate(ReportMetadata(RankReport({1: 1}, {"r": "x"})))
    assert total == ReportMetadata(RankReport({1: 2}, {"r": "x"}))


class Metrics:
    """vLLM's metrics of this connector, in a registry of their own."""

    def __init__(self, config: Any, engines: int = 1) -> None:
        self.registry = CollectorRegistry()
        kinds = {kind: functools.partial(kind, registry=self.registry) for kind in (Counter, Gauge, Histogram)}
        made = PegaKVConnector.build_prom_metrics(
            config, kinds, ["model_name", "engine"], {number: ["m", str(number)] for number in range(engines)}
        )
        assert made is not None
        self.metrics = made

    def value(self, name: str, engine: int = 0, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"pegaflow_{name}", {"model_name": "m", "engine": str(engine), **labels})


def test_counters_appear_on_vllms_metrics(config: Any) -> None:
    metrics = Metrics(config)
    assert metrics.value("pages_saved_total") == 0, "there from the start, for whoever watches its growth"
    total = PegaStats({"pages_saved": 2}).aggregate(PegaStats({"pages_saved": 3, "loads|done": 1, "unknown": 1}))
    assert total.reduce() == {"pages_saved": 5, "loads|done": 1, "unknown": 1}
    metrics.metrics.observe(total.data, 0)
    assert metrics.value("pages_saved_total") == 5
    assert metrics.value("loads_total", outcome="done") == 1


def test_seconds_are_histograms(config: Any) -> None:
    metrics = Metrics(config)
    total = PegaStats({"lookup_seconds|hit": [0.002], "save_seconds": [0.3]})
    total.aggregate(PegaStats({"lookup_seconds|hit": [0.004, 20.0]}))
    metrics.metrics.observe(total.data, 0)
    assert metrics.value("lookup_seconds_count", outcome="hit") == 3
    assert metrics.value("lookup_seconds_bucket", outcome="hit", le="0.0025") == 1
    assert metrics.value("save_seconds_sum") == pytest.approx(0.3)
    assert total.reduce()["lookup_seconds|hit (median of 3)"] == 0.004


def test_gauges_are_the_latest_of_each_part_added_up(config: Any) -> None:
    metrics = Metrics(config, engines=2)
    assert metrics.value("open_grants", engine=1) == 0
    step = PegaStats({"open_grants|rank 0": 3}).aggregate(PegaStats({"open_grants|rank 1": 2}))
    metrics.metrics.observe(step.data, 0)
    metrics.metrics.observe({"open_grants|rank 0": 7, "open_saves|scheduler": 1}, 1)
    assert (metrics.value("open_grants"), metrics.value("open_grants", engine=1)) == (5, 7)
    metrics.metrics.observe(PegaStats({"open_grants|rank 1": 0}).data, 0)
    assert metrics.value("open_grants") == 3
    later = PegaStats({"open_grants|rank 0": 3}).aggregate(PegaStats({"open_grants|rank 0": 0}))
    metrics.metrics.observe(later.data, 0)
    assert metrics.value("open_grants") == 0
    assert metrics.value("open_saves", engine=1) == 1


def test_statistics_survive_the_way_to_the_process_that_serves_them(config: Any) -> None:
    sent = PegaStats({"saves|written": 1, "save_seconds": [0.25], "open_saves|scheduler": 0})
    there = MsgpackDecoder(dict[str, Any]).decode(MsgpackEncoder().encode(sent.to_dict()))
    rebuilt = PegaKVConnector.build_kv_connector_stats(there)
    assert rebuilt == sent
    logger = KVConnectorLogging(config.kv_transfer_config)
    logger.observe(there)
    logger.observe({"saves|written": 1})
    assert there == sent.data, "the logger's total is not what others read"


def test_where_a_load_came_from(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = make(config)
    request: Any = SimpleNamespace(request_id="r")
    assert connector._scheduler is not None
    monkeypatch.setattr(connector._scheduler, "sources", lambda request: {0: 32, 1: 16, 2: 5})
    assert connector.get_external_cache_hit_sources(request, 53) == {
        CacheHitSource.HOST: 32,
        CacheHitSource.P2P: 16,
        CacheHitSource.DISK: 5,
    }
    monkeypatch.setattr(connector._scheduler, "sources", lambda request: {})
    assert connector.get_external_cache_hit_sources(request, 53) == {CacheHitSource.EXTERNAL_UNSPECIFIED: 53}
    assert connector.get_external_cache_hit_sources(request, 0) == {}


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "connector.md").read_text(encoding="utf-8")
    documented = set(
        re.findall(r"`([a-z_]+)`", "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `")))
    )
    assert documented - {"isolate", "keep"} == {*COUNTERS, *SECONDS, *GAUGES}
