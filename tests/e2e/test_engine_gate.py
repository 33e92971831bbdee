"""Real vLLM with the connector answers like vLLM alone, whatever it loads: cold, warm, in a new process, with prefixes extended
and rolled back, through chats and storms of preemptions, for full attention and MLA, on one rank and on two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from environment.checkout import MODEL

from .gate.engine import Engine, transfer
from .gate.models import ARGS, BLOCK_SIZE, Tiny
from .gate.prompts import English, RandomIds, Source
from .gate.script import Replay, Scale, failures, record
from .gate.served import EngineSpec
from .gate.site import make_models, two_tiers
from .gate.stored import names, quiet

pytestmark = pytest.mark.timeout(600)

SMALL = Scale(lengths=(1, 5, 31, 32, 33, 64, 65, 200, 400), answer=24, storm=16, storm_length=60, storm_answer=100)
TALK = Scale(lengths=(5, 32, 33, 65, 130), answer=12, storm=8, storm_length=40, storm_answer=40)


@dataclass(frozen=True)
class Subject:
    """A model and how it is served. `storm`: blocks of the KV cache in the storm; `args` are given to every engine."""

    name: str
    model: Tiny | None
    scale: Scale
    storm: int
    tp: int = 1
    args: dict[str, Any] = field(default_factory=dict)


SUBJECTS = (
    Subject("smollm2", None, TALK, 20, args={"max_model_len": 512, "kv_cache_memory_bytes": 1 << 30}),
    Subject("llama tp2", Tiny.LLAMA, SMALL, 40, tp=2, args={"enable_prefix_caching": False, "max_num_batched_tokens": 80}),
    Subject("mla", Tiny.MLA, SMALL, 70),
    Subject("mla tp2", Tiny.MLA, SMALL, 70, tp=2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[Tiny, Path]:
    return make_models(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with two_tiers() as made:
        yield made


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_gate(subject: Subject, models: dict[Tiny, Path], cluster: Cluster, folder: Path) -> None:
    model = MODEL if subject.model is None else models[subject.model]
    block_size = 32 if subject.model is None else BLOCK_SIZE[subject.model]
    source: Source = English(model) if subject.model is None else RandomIds()
    args = {"block_size": block_size, "tensor_parallel_size": subject.tp, **subject.args}
    if subject.model is not None:
        args |= ARGS[subject.model]

    def engine(name: str, connected: bool = True, **more: Any) -> Engine:
        spec = EngineSpec(model, {**args, **more}, transfer(cluster, "a") if connected else None)
        return Engine(spec, folder / f"{subject.name} {name}.log")

    with engine("alone", connected=False) as alone:
        phases = record(alone, source, subject.scale)
    with engine("cold") as cold:
        replay = Replay(cold, cluster, "a", source, block_size, subject.tp)
        assert replay.run(phases["first"]) == 0
        assert replay.run(phases["first"]) > 0  # the same process, warm: its own cache was emptied
    with engine("new") as new:
        replay = Replay(new, cluster, "a", source, block_size, subject.tp)
        for name in ("first", "extended", "rolled back"):
            assert replay.run(phases[name]) > 0, name
        loaded = [replay.run(phases[f"chat {turn}"]) for turn in (1, 2, 3)]
        # Pages that decoding filled are among them: the second prompt begins with the first and its answer.
        assert 0 == loaded[0] < loaded[1] < loaded[2]
    with engine("storm", num_gpu_blocks_override=subject.storm) as narrow:
        grown = Replay(narrow, cluster, "a", source, block_size, subject.tp).storm(phases["storm"])
        assert grown["vllm:num_preemptions_total"] > 0
        assert grown["pegaflow_loads_total{done}"] > 0


def test_an_answer_depends_on_its_first_page(models: dict[Tiny, Path], folder: Path) -> None:
    """Else a wrong page would go unnoticed: one early id changes, the answer after many blocks changes too."""
    source = RandomIds()
    prompts = [source.words(f"dependence {i}", 300) for i in range(8)]
    changed = [[*prompt[:3], prompt[3] % 1000 + 5, *prompt[4:]] for prompt in prompts]
    for kind, path in models.items():
        spec = EngineSpec(path, {"block_size": BLOCK_SIZE[kind], "enable_prefix_caching": False, **ARGS[kind]})
        with Engine(spec, folder / f"{kind} dependence.log") as engine:
            answers, others = ([answer.ids for answer in engine.generate(asked, 16)] for asked in (prompts, changed))
        assert all(answer != other for answer, other in zip(answers, others, strict=True)), kind


def test_as_a_child_of_vllms_multi_connector(models: dict[Tiny, Path], cluster: Cluster, folder: Path) -> None:
    """Two children at two tiers: both save everything, the first one with pages loads, and the metrics are those of both."""
    source = RandomIds()
    prompts = [source.words(f"multi {i}", length) for i, length in enumerate((33, 64, 100, 200))]
    pages = sum(len(prompt) // 32 for prompt in prompts)

    def engine(name: str, *nodes: str) -> Engine:
        connector = transfer(cluster, nodes[0])
        if len(nodes) > 1:
            connector["kv_connector"] = "MultiConnector"
            del connector["kv_connector_module_path"]
            connector["kv_connector_extra_config"] = {"connectors": [transfer(cluster, node) for node in nodes]}
        return Engine(EngineSpec(models[Tiny.LLAMA], {"block_size": 32}, connector), folder / f"multi {name}.log")

    with engine("both", "a", "b") as both:
        keys = both.keys(32)
        first = [answer.ids for answer in both.generate(prompts, 8)]
        saved = both.idle()
        both.reset()
        again = [answer.ids for answer in both.generate(prompts, 8)]
        loaded = both.idle()
    for node in ("a", "b"):
        quiet(cluster, node)
        there = names(cluster, node, keys)
        assert {key for prompt in prompts for key in keys.blocks(prompt)} <= there
    assert again == first
    assert saved["pegaflow_pages_saved_total"] >= 2 * pages
    assert loaded["pegaflow_pages_loaded_total"] == pages
    assert not list(failures({name: value for name, value in loaded.items() if value}))
    # What the second child saved is whole: an engine at its tier alone answers the same from it.
    with engine("second", "b") as second:
        assert [answer.ids for answer in second.generate(prompts, 8)] == first
        assert second.idle()["pegaflow_pages_loaded_total"] == pages
