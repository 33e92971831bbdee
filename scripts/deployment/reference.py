"""The same vLLM alone, without connector: the answers that the deployment has to give."""

from __future__ import annotations

from typing import NamedTuple

from deployment.answers import Answer, ask
from deployment.cases import BLOCK_SIZE, LENGTHS, QUESTIONS, Case, PromptMaker
from deployment.http import Json, Server

TOPICS = {"kitchen": (40, 100, 230), "larder": (37, 64, 150), "garden": (33, 96, 170)}
"""Prompts for the faults of the proof: the metaserver's death, the tier's, and the tier's without its pool."""


class Expected(NamedTuple):
    """A case and the right answer to it."""

    case: Case
    answer: Answer

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.answer.prompt_ids

    @property
    def pages(self) -> int:
        """Pages of the prompt, the partial tail page included."""
        return -(-len(self.prompt_ids) // BLOCK_SIZE)

    @property
    def has_tail(self) -> bool:
        return len(self.prompt_ids) % BLOCK_SIZE > 0


class References(NamedTuple):
    """`plain`: the lengths and the chat; `metaserver`, `restart` and `tier`: prompts that nobody asks before that fault."""

    plain: list[Expected]
    outage: Expected
    metaserver: list[Expected]
    restart: list[Expected]
    tier: list[Expected]


def collect(server: Server, prompts: PromptMaker) -> References:
    """Asks one plain server for everything that the proof compares with. Raises HttpFailure."""

    def expect(case: Case) -> Expected:
        return Expected(case, ask(server, case))

    plain = [expect(prompts.completion(_topic(length), length)) for length in LENGTHS]
    messages: list[Json] = []
    for turn, question in enumerate(QUESTIONS, start=1):
        messages = [*messages, {"role": "user", "content": question}]
        plain.append(expect(prompts.chat(f"chat turn {turn}", messages)))
        messages = [*messages, {"role": "assistant", "content": plain[-1].answer.text}]
    return References(
        plain=plain,
        outage=expect(prompts.completion("bridge", 70)),
        metaserver=[expect(prompts.completion(f"kitchen {n}", n)) for n in TOPICS["kitchen"]],
        restart=[expect(prompts.completion(f"larder {n}", n)) for n in TOPICS["larder"]],
        tier=[expect(prompts.completion(f"garden {n}", n)) for n in TOPICS["garden"]],
    )


def _topic(length: int) -> str:
    """Own first words for each length, so that no prompt begins like another."""
    nouns = ("roof", "door", "window", "cellar", "wall", "chimney", "fence", "stair", "floor", "lamp", "clock", "gate")
    return nouns[LENGTHS.index(length)]
