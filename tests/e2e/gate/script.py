"""The script of the gate: what one vLLM alone answers, phase by phase, and another engine doing the same again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cluster import Cluster

from .engine import Engine
from .prompts import Source
from .stored import names, quiet

TURNS = 3
CHATS = ("rivers", "mountains")
MUST_NOT_GROW = (
    "pegaflow_hook_errors_total",
    "pegaflow_requests_refused_total",
    "pegaflow_saves_total{failed}",
    "pegaflow_saves_total{offer_failed}",
    "pegaflow_saves_total{no_block_table}",
)
LOADED = "pegaflow_pages_loaded_total"
LOOKUPS_MAY_SAY = frozenset({"hit", "miss", "cancelled", "no_tier"})
NO_TIER = "pegaflow_lookups_total{no_tier}"
"""Nothing was heard of the tier for 1.2 s: the machine stood still, and what was computed then shows nothing of loads."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Prompts that are asked at once, and the ids that one vLLM alone answers."""

    name: str
    prompts: list[list[int]]
    ids: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked: lengths of the first prompts; number, length and answer of the storm's."""

    lengths: tuple[int, ...]
    answer: int
    storm: int
    storm_length: int
    storm_answer: int


def record(engine: Engine, source: Source, scale: Scale) -> dict[str, Phase]:
    """Asks an engine without a connector."""
    phases: dict[str, Phase] = {}

    def ask(name: str, prompts: list[list[int]], max_tokens: int = scale.answer) -> Phase:
        answers = engine.generate(prompts, max_tokens)
        phases[name] = Phase(name, prompts, [answer.ids for answer in answers])
        return phases[name]

    first = ask("first", [source.words(f"roof {i}", length) for i, length in enumerate(scale.lengths)])
    ask(
        "extended",
        [
            [*prompt, *ids, *source.words(f"door {i}", 21)]
            for i, (prompt, ids) in enumerate(zip(first.prompts, first.ids, strict=True))
        ],
    )
    ask(
        "rolled back",
        [[*prompt[: 2 * len(prompt) // 3], *source.words(f"garden {i}", 37)] for i, prompt in enumerate(first.prompts)],
    )
    chats: list[list[int]] = [[] for _ in CHATS]
    for turn in range(TURNS):
        prompts = [[*said, *source.turn(chat, turn)] for said, chat in zip(chats, CHATS, strict=True)]
        answered = ask(f"chat {turn + 1}", prompts, 2 * scale.answer)
        chats = [[*prompt, *ids] for prompt, ids in zip(prompts, answered.ids, strict=True)]
    lengths = [scale.storm_length + 13 * i for i in range(scale.storm)]
    ask("storm", [source.words(f"window {i}", length) for i, length in enumerate(lengths)], scale.storm_answer)
    return phases


class Replay:
    """One engine that repeats phases. After each: the same ids, loads that are exactly the pages that the tier had, nothing
    that failed, nothing left over in engine and tier."""

    def __init__(self, engine: Engine, cluster: Cluster, node: str, source: Source, block_size: int, ranks: int) -> None:
        self.engine = engine
        self._cluster, self._node, self._source, self._ranks = cluster, node, source, ranks
        self._block_size = block_size
        self.keys = engine.keys(block_size)

    def run(self, phase: Phase) -> int:
        """Returns how many pages were loaded, each counted once."""
        grown = {NO_TIER: 1.0}
        while NO_TIER in grown:  # the test's own time ends it
            self.engine.reset()
            before = self.engine.idle()
            quiet(self._cluster, self._node)
            there = names(self._cluster, self._node, self.keys)
            prefixes = [self._prefix(prompt, there) for prompt in phase.prompts]
            skipped, grown = self._ask(phase, before)
        cached = [min(pages * self._block_size, len(prompt) - 1) for pages, prompt in zip(prefixes, phase.prompts, strict=True)]
        assert skipped == cached, phase.name
        assert grown.get(LOADED, 0) == self._ranks * sum(prefixes), (phase.name, grown)
        hits = sum(pages > 0 for pages in prefixes)
        for name in ("pegaflow_lookups_total{hit}", "pegaflow_loads_total{done}"):
            assert grown.get(name, 0) == hits, (phase.name, name, grown)
        return sum(prefixes)

    def storm(self, phase: Phase) -> dict[str, float]:
        """More at once than the KV cache holds. Returns the growth of the counters."""
        _, grown = self._ask(phase, self.engine.idle())
        return grown

    def _ask(self, phase: Phase, before: dict[str, float]) -> tuple[list[int], dict[str, float]]:
        answers = self.engine.generate(phase.prompts, len(phase.ids[0]))
        after = self.engine.idle()
        grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        ids = [answer.ids for answer in answers]
        assert list(map(self._source.text, ids)) == list(map(self._source.text, phase.ids)), phase.name
        assert ids == phase.ids, phase.name
        assert not list(failures(grown)), (phase.name, grown)
        quiet(self._cluster, self._node)
        return [answer.cached for answer in answers], grown

    def _prefix(self, prompt: list[int], there: frozenset[bytes]) -> int:
        """How many of the prompt's first blocks the tier has."""
        blocks = self.keys.blocks(prompt)
        return next((i for i, key in enumerate(blocks) if key not in there), len(blocks))


def failures(grown: dict[str, float]) -> Iterator[str]:
    """Names of counters that must not have grown."""
    for name in grown:
        label = name[name.find("{") + 1 : -1] if "{" in name else ""
        if (
            name.startswith(MUST_NOT_GROW)
            or (name.startswith("pegaflow_loads_total") and label != "done")
            or (name.startswith("pegaflow_lookups_total") and label not in LOOKUPS_MAY_SAY)
        ):
            yield name
