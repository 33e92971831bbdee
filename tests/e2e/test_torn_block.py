"""The torn block, provoked in real vLLM: preemptions, chunks that end inside blocks, rejected drafts. Every page that was stored
is then computed again by an engine that does one request at a time, and compared number by number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, until
from pegaflow.common.keys import Key

from .gate.comparison import Rows, Verdict, compare, torn
from .gate.engine import Engine, transfer
from .gate.keys import Keys
from .gate.models import BLOCK_SIZE, Tiny
from .gate.prompts import RandomIds
from .gate.script import failures
from .gate.served import EngineSpec
from .gate.site import make_models, two_tiers
from .gate.stored import Pages, StoredPage, names, quiet, sealed

pytestmark = pytest.mark.timeout(600)

BLOCK = BLOCK_SIZE[Tiny.LLAMA]
ANSWER = 120
PROBES = 4
LOADED = "pegaflow_loads_total{done}"
SOURCE = RandomIds()
STORM = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": 34,  # one request of the longest kind fits, and not much more
    "max_num_batched_tokens": 72,  # chunks end inside blocks
    "max_num_seqs": 12,
    # Admitted although the whole prompt does not fit: else nobody is preempted in the middle of a prompt, where blocks are torn.
    "scheduler_reserve_full_isl": False,
}


@dataclass(frozen=True)
class Case:
    """An engine under stress, and what it must have met: `met` names counters that have to have grown."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)
    mode: str = "write_only"
    repeats: bool = False
    met: tuple[str, ...] = ("vllm:num_preemptions_total",)

    def prompts(self) -> list[list[int]]:
        """20 prompts of 70 to 500 ids, none of which ends with a block except by chance."""
        lengths = [70 + (i * 97) % 430 for i in range(20)]
        if not self.repeats:
            return [SOURCE.words(f"{self.name} {i}", length) for i, length in enumerate(lengths)]
        # The same few ids again and again: drafts are made, and a model with random weights follows some of them only.
        return [(SOURCE.words(f"{self.name} {i}", 9) * 60)[:length] for i, length in enumerate(lengths)]


RECOMPUTED = Case("recomputed", {"enable_prefix_caching": False})
CASES = (
    RECOMPUTED,
    Case("prefix cache", {"enable_prefix_caching": True}),
    Case(
        "loaded", {"enable_prefix_caching": True}, "read_write", met=("vllm:num_preemptions_total", "pegaflow_loads_total{done}")
    ),
    Case(
        "drafts",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}},
        repeats=True,
        met=("vllm:num_preemptions_total", "vllm:spec_decode_num_accepted_tokens_total", "rejected"),
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torn")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return make_models(folder)[Tiny.LLAMA]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with two_tiers() as made:
        yield made


class Truth:
    """An engine that computes whatever it is asked for alone, in one piece, and stores it at tier b."""

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self._engine, self._cluster = engine, cluster
        self.keys = engine.keys(BLOCK)
        self.rows = self._rows()

    def pages(self, prompts: list[list[int]], answers: list[tuple[int, ...]]) -> Pages:
        """All pages of these prompts and answers."""
        wanted = [(prompt, {*self.keys.blocks(prompt), *self._tail(prompt)}) for prompt in prompts]
        for prompt, ids in zip(prompts, answers, strict=True):
            known = [*prompt, *ids[:-1]]
            wanted.append((known, set(self.keys.blocks(known))))
        self._store(wanted)
        return sealed(self._cluster, "b", self.keys)

    def _store(self, wanted: list[tuple[list[int], set[Key]]]) -> None:
        """Ids, and the pages that they must leave. What was not granted in time is computed again."""
        missing = wanted

        def stored() -> bool:
            nonlocal missing
            self._engine.generate([ids for ids, _ in missing], 1, together=False)
            self._engine.idle()
            quiet(self._cluster, "b")
            there = names(self._cluster, "b", self.keys)
            missing = [(ids, keys) for ids, keys in missing if not keys <= there]
            return not missing

        until("every page of the truth", stored, 120)

    def _tail(self, prompt: list[int]) -> set[Key]:
        tail = self.keys.tail(prompt)
        return set() if tail is None else {tail}

    def _rows(self) -> Rows:
        probes: list[tuple[list[StoredPage], StoredPage]] = []
        topics = itertools.count()

        def probed() -> bool:
            ids = SOURCE.words(f"rows {next(topics)}", BLOCK)
            cuts = [ids[:rows] for rows in range(1, BLOCK)]
            self._engine.generate([*cuts, ids], 1, together=False)
            self._engine.idle()
            quiet(self._cluster, "b")
            pages = sealed(self._cluster, "b", self.keys)
            tails = [page for cut in cuts for key in self._tail(cut) if (page := pages.get((key, 0))) is not None]
            full = pages.get((self.keys.blocks(ids)[0], 0))
            # A page that was not granted in time is not tried again: its block would hold the rows that it must lack.
            if full is not None and len(tails) == len(cuts):
                probes.append((tails, full))
            return len(probes) == PROBES

        until("what each row adds to a page", probed, 120)
        return Rows.of(probes)


@pytest.fixture(scope="module")
def truth(model: Path, cluster: Cluster, folder: Path) -> Iterator[Truth]:
    spec = EngineSpec(
        model,
        {"block_size": BLOCK, "enable_prefix_caching": False, "max_num_batched_tokens": 2048},
        transfer(cluster, "b", "write_only", pd_tail_save=True),
    )
    with Engine(spec, folder / "truth.log") as engine:
        yield Truth(engine, cluster)


def judge(case: Case, model: Path, cluster: Cluster, truth: Truth, folder: Path, connector: dict[str, Any]) -> Verdict:
    """Runs the case and compares all that it stored."""
    prompts = case.prompts()
    there = names(cluster, "a", truth.keys)
    with Engine(EngineSpec(model, {**STORM, **case.args}, connector), folder / f"{case.name}.log") as engine:
        answers = [answer.ids for answer in engine.generate(prompts, ANSWER)]
        grown = engine.idle()
    grown["rejected"] = grown.get("vllm:spec_decode_num_draft_tokens_total", 0) - grown.get(
        "vllm:spec_decode_num_accepted_tokens_total", 0
    )
    assert all(grown.get(name, 0) > 0 for name in case.met), (case.met, grown)
    assert not list(failures({name: value for name, value in grown.items() if value})), grown
    quiet(cluster, "a")
    pages = {name: page for name, page in sealed(cluster, "a", truth.keys).items() if name[0] not in there}
    explicable = expected(truth.keys, prompts, answers)
    if not {f"pegaflow_saves_total{{{why}}}" for why in ("no_grant", "abandoned", "not_published")} & grown.keys():
        assert explicable <= {key for key, _ in pages}
    explained: Pages = {name: page for name, page in pages.items() if name[0] in explicable}
    verdict = compare(explained, truth.pages(prompts, answers), truth.rows)
    # Pages that hold more than was computed and accepted have no truth; there must be none.
    verdict.wrong.update({name: [] for name in pages.keys() - explained.keys()})
    return verdict


def expected(keys: Keys, prompts: list[list[int]], answers: list[tuple[int, ...]]) -> set[Key]:
    """The full blocks of everything computed (the last produced id never is), and the tails of the prompts."""
    known = [[*prompt, *ids[:-1]] for prompt, ids in zip(prompts, answers, strict=True)]
    tails = {tail for prompt in prompts if (tail := keys.tail(prompt)) is not None}
    return {key for ids in known for key in keys.blocks(ids)} | tails


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_stored_page_holds_what_its_name_says(
    case: Case, model: Path, cluster: Cluster, truth: Truth, folder: Path
) -> None:
    connector = transfer(cluster, "a", case.mode, pd_tail_save=True)
    verdict = judge(case, model, cluster, truth, folder, connector)
    assert verdict.wrong == {}
    assert verdict.tails > 0
    assert verdict.compared > 200


def test_a_connector_that_counts_for_itself_is_found_out(model: Path, cluster: Cluster, truth: Truth, folder: Path) -> None:
    """The stress of the other tests tears blocks where a connector lets it, and the comparison sees it."""
    connector = transfer(cluster, "a", "write_only", pd_tail_save=True)
    connector |= {"kv_connector": "AccumulatingConnector", "kv_connector_module_path": "e2e.gate.accumulator"}
    case = replace(RECOMPUTED, name="accumulated")
    assert any(rows for rows in judge(case, model, cluster, truth, folder, connector).wrong.values())


def test_one_wrong_row_is_seen(cluster: Cluster, truth: Truth) -> None:
    prompt = SOURCE.words("control", 2 * BLOCK + 7)
    pages = truth.pages([prompt], [(5,)])
    blocks: list[tuple[bytes, int]] = [(key, 0) for key in truth.keys.blocks(prompt)]
    first, second = blocks
    right: Pages = {first: pages[first], second: pages[second]}
    assert compare(right, pages, truth.rows) == Verdict(compared=2)
    for row in (0, BLOCK - 1):
        verdict = compare({first: torn(pages[first], pages[second], truth.rows, row)}, pages, truth.rows)
        assert verdict.wrong == {first: [row]}
