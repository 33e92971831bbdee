"""Options and what is refused at start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_descriptions import LAYER, plain_engine
from pegaflow.connector.engine import CacheLayer
from pegaflow.connector.fingerprint import base_factors, none_hash_value, with_layouts
from pegaflow.connector.options import Decode, Mode, Options, StartRefused, parse_options
from pegaflow.connector.refusals import refuse_unsupported
from pegaflow.connector.weights import weights_digest

ENGINE = plain_engine(groups=((LAYER, LAYER),), tp=2, pp=2, hash_algorithm="sha256_cbor", model="org/model", revision="main")


def options(**values: Any) -> Options:
    return parse_options({f"pegaflow.{name}": value for name, value in values.items()}, {})


def test_defaults() -> None:
    parsed = parse_options({"other": 1}, {"XDG_RUNTIME_DIR": "/run/user/7"})
    assert parsed == Options(
        tier="ipc:///run/user/7/pegaflow/requests.sock",
        runtime_dir=Path("/run/user/7/pegaflow"),
        mode=Mode.READ_WRITE,
        pd_tail_save=False,
        pd_tail_load=False,
        decode=Decode.RECOMPUTE,
        wait_ms=5000,
        request_timeout_ms=2000,
    )
    assert parse_options({}, {}).runtime_dir.is_absolute()


def test_values_are_trimmed_and_case_does_not_matter() -> None:
    parsed = options(mode=" Read ", decode="STRICT", pd_tail_load="True", pd_tail_save=True, wait_ms=" 10 ", request_timeout_ms=5)
    assert (parsed.mode, parsed.decode, parsed.wait_ms, parsed.request_timeout_ms) == (Mode.READ, Decode.STRICT, 10, 5)
    assert parsed.pd_tail_load
    assert parsed.pd_tail_save
    assert (parsed.saves, parsed.loads) == (False, True)
    assert (options(mode="write_only").saves, options(mode="write_only").loads) == (True, False)


def test_the_tier_lies_in_the_runtime_directory() -> None:
    assert options(runtime_dir="/run/x").tier == "ipc:///run/x/requests.sock"
    assert options(runtime_dir="/run/x", tier="tcp://127.0.0.1:5").tier == "tcp://127.0.0.1:5"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mode", "both", "read_write, read, write_only"),
        ("decode", "never", "recompute, strict"),
        ("pd_tail_load", "yes", "true or false"),
        ("wait_ms", "soon", "milliseconds"),
        ("wait_ms", 0, "milliseconds"),
        ("request_timeout_ms", -1, "milliseconds"),
        ("tier", "localhost:5", "ipc://PATH"),
        ("runtime_dir", "run", "absolute"),
    ],
)
def test_a_bad_value_says_what_is_allowed(name: str, value: object, says: str) -> None:
    with pytest.raises(StartRefused, match=says) as refused:
        options(**{name: value})
    assert refused.value.code == "bad_option"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("pegaflow.mod", "pegaflow.mode"),
        ("pegaflow.pd_tail_saves", "pegaflow.pd_tail_save"),
        ("pegaflow_wait_ms", "pegaflow.wait_ms"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(StartRefused, match=f"{name} .* {nearest}$") as refused:
        parse_options({name: 1}, {})
    assert refused.value.code == "unknown_option"


def test_what_is_supported() -> None:
    refuse_unsupported(options(), ENGINE)
    refuse_unsupported(options(mode="read"), replace(ENGINE, role="kv_consumer", scheduling_policy="priority"))
    refuse_unsupported(options(mode="write_only"), replace(ENGINE, role="kv_producer", load_failure_policy="fail"))
    refuse_unsupported(options(decode="strict", pd_tail_load=True), replace(ENGINE, load_failure_policy="fail"))
    refuse_unsupported(options(), replace(ENGINE, speculation="ngram", hash_block_size=8))
    sparse_mla = CacheLayer("indexer", "MLAAttentionSpec", None, 0)
    refuse_unsupported(options(), replace(ENGINE, groups=((LAYER, sparse_mla),), mla=True))


WINDOW = CacheLayer("layers.3", "FullAttentionSpec", 4096, 0)
REPLAY = CacheLayer("layers.3", "SlidingWindowMLASpec", 128, 128)
MAMBA = CacheLayer("layers.3", "MambaSpec", None, 0)
COMPRESSED = CacheLayer("layers.4", "MLAAttentionSpec", None, 0, True)


@pytest.mark.parametrize(
    ("given", "engine", "code", "says"),
    [
        ({}, {"load_failure_policy": "fail"}, "recompute_needs_policy", "set it to recompute"),
        ({"decode": "strict", "pd_tail_load": True}, {}, "strict_needs_fail", "kv_load_failure_policy=fail"),
        ({"decode": "strict"}, {"load_failure_policy": "fail"}, "strict_needs_tails", "pd_tail_load"),
        (
            {"decode": "strict", "pd_tail_load": True, "mode": "write_only"},
            {"load_failure_policy": "fail"},
            "strict_needs_loads",
            "read or read_write",
        ),
        ({}, {"role": "kv_producer"}, "producer_cannot_load", "kv_both"),
        ({"mode": "read"}, {"role": "kv_producer"}, "producer_cannot_load", "write_only"),
        ({}, {"scheduling_policy": "priority"}, "priority_scheduling", "fcfs"),
        ({}, {"speculation": "eagle3"}, "speculation", "ngram"),
        ({}, {"speculation": "mtp"}, "speculation", "ngram"),
        ({}, {"speculation": "draft_model"}, "speculation", "ngram"),
        ({}, {"groups": ((LAYER,), (LAYER,))}, "cache_groups", "2 KV cache groups"),
        ({}, {"groups": ()}, "cache_groups", "0 KV cache groups"),
        ({}, {"groups": ((LAYER, WINDOW),)}, "sliding_window", "4096 tokens"),
        ({}, {"groups": ((LAYER, REPLAY),)}, "prefix_replay", "128 tokens"),
        ({}, {"groups": ((LAYER, MAMBA),)}, "attention_kind", "MambaSpec"),
        ({}, {"groups": ((LAYER, COMPRESSED),)}, "compressed_states", "layers.4"),
        ({}, {"dcp": 2}, "context_parallel", "decode context parallel size 2"),
        ({}, {"pcp": 2}, "context_parallel", "prefill context parallel size 2"),
        ({}, {"hash_block_size": 12}, "hash_granularity", "12 tokens"),
        ({}, {"dynamic_kv_scales": True}, "dynamic_kv_scales", "calculate_kv_scales"),
    ],
)
def test_each_refusal_says_what_to_change(given: dict[str, Any], engine: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(StartRefused, match=says) as refused:
        refuse_unsupported(options(**given), replace(ENGINE, **engine))
    assert refused.value.code == code


def test_shards_and_stripes() -> None:
    assert (ENGINE.ranks, ENGINE.shards, ENGINE.stripes) == (4, 4, 1)
    assert [ENGINE.shard(tp, pp) for pp in range(2) for tp in range(2)] == [0, 1, 2, 3]
    mla = replace(ENGINE, mla=True)
    assert (mla.ranks, mla.shards, mla.stripes) == (4, 2, 2)
    assert [(mla.shard(tp, pp), mla.stripe(tp)) for pp in range(2) for tp in range(2)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_that_nobody_else_can_compute_are_refused(algorithm: str) -> None:
    with pytest.raises(StartRefused, match="PYTHONHASHSEED") as refused:
        none_hash_value(algorithm, {})
    assert refused.value.code == "hash_seed"


def test_each_factor_counts() -> None:
    base = base_factors(ENGINE, b"n")
    for change in (
        {"model": "org/other"},
        {"revision": "x"},
        {"dtype": "bfloat16"},
        {"cache_dtype": "fp8"},
        {"quantization": "awq"},
        {"hf_overrides": "{'rope': 1}"},
        {"block_size": 32},
        {"hash_block_size": 8},
        {"hash_algorithm": "sha256"},
        {"tp": 1},
        {"pp": 1},
        {"mla": True},
    ):
        changed: dict[str, Any] = dict(change)
        assert base_factors(replace(ENGINE, **changed), b"n") != base, change
    assert base_factors(ENGINE, b"m") != base
    assert base_factors(replace(ENGINE, engine_id="f", num_blocks=7, role="kv_consumer"), b"n") == base
    assert with_layouts(base, [b"\x01", b"\x02"])["layout_1"] == "02"


def model(directory: Path, *, header: bytes = b'{"w":0}', config: str = "{}", data: bytes = b"\0" * 64) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(config)
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return directory


def test_the_weights_digest_depends_on_the_files_and_not_on_their_place(tmp_path: Path) -> None:
    digest = weights_digest(model(tmp_path / "a"))
    assert digest == weights_digest(model(tmp_path / "b"))
    assert digest != weights_digest(model(tmp_path / "c", header=b'{"v":0}'))
    assert digest != weights_digest(model(tmp_path / "d", config='{"hidden_size": 1}'))
    assert digest != weights_digest(model(tmp_path / "e", data=b"\0" * 65))
    assert digest != weights_digest(model(tmp_path / "f", data=b"\0" * 63 + b"\1"))
    (tmp_path / "b" / "README.md").write_text("x")
    assert digest == weights_digest(tmp_path / "b")


def test_a_local_model_counts_by_its_files(tmp_path: Path) -> None:
    here = replace(ENGINE, model="a", model_path=model(tmp_path / "a"), revision="x")
    there = replace(ENGINE, model="b", model_path=model(tmp_path / "b"), revision="y")
    assert base_factors(here, b"n") == base_factors(there, b"n")
