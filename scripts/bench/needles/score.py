"""What answers are worth: is the secret in them, are ids those of the plain vLLM, and did they come the way they should. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, NamedTuple

from deployment.answers import Answer
from deployment.cases import BLOCK_SIZE
from deployment.counters import Counters

from .path import Path, Way, after_full_pages, path
from .prompts import DEPTHS, Prompt


class Reference(NamedTuple):
    """Of the plain vLLM: never asked before, and once more, with the prompt's blocks in its own cache."""

    cold: Answer
    again: Answer


@dataclass(frozen=True, slots=True)
class Part:
    """One group of prompts, all of one length, answered in one way. `grown`: counters over it; None where no P and D are.

    `replayed`: names of prompts whose first token is no whole text, so that the router has to send the whole request to D.
    """

    way: Way
    prompts: Sequence[Prompt]
    answers: Sequence[Answer]
    grown: Counters | None = None
    replayed: frozenset[str] = frozenset()

    @property
    def group(self) -> str:
        return self.prompts[0].group

    @property
    def ids(self) -> int:
        return len(self.prompts[0].ids)

    def plus(self, other: Part) -> Part:
        """Of the same group and way."""
        grown = self.grown.plus(other.grown) if self.grown and other.grown else None
        replayed = self.replayed | other.replayed
        return Part(self.way, [*self.prompts, *other.prompts], [*self.answers, *other.answers], grown, replayed)


def joined(parts: Sequence[Part]) -> list[Part]:
    """One for each group and way, in the order in which groups came first, ways as in :class:`Way`."""
    found: dict[tuple[str, Way], Part] = {}
    for part in parts:
        key = (part.group, part.way)
        found[key] = found[key].plus(part) if key in found else part
    groups = list(dict.fromkeys(part.group for part in parts))
    return [found[group, way] for group in groups for way in Way if (group, way) in found]


def forwardable(text: str) -> bool:
    """Of a first token: the text of a special one is empty, that of half a character ends with U+FFFD."""
    return text != "" and text[-1] != "\ufffd"


def told(prompt: Prompt, answer: Answer) -> bool:
    """Whether the secret is in it; False for a prompt without one."""
    return bool(prompt.secret) and prompt.secret in answer.text


def first_difference(these: Sequence[int], those: Sequence[int]) -> int | None:
    """Position in the answer, from 0; where one ends and the other goes on, they differ."""
    return next((i for i, (one, other) in enumerate(zip_longest(these, those)) if one != other), None)


def wrong(part: Part, references: Mapping[str, Reference]) -> list[str]:
    """Answers whose ids differ from those of the plain vLLM and must not, and in every way those without any id.

    `OWN_CACHE`: they must not where the plain vLLM answers the same with its own cache and without; elsewhere nobody can say.
    """
    found = []
    for prompt, answer in zip(part.prompts, part.answers, strict=True):
        right = references[prompt.name]
        at = first_difference(answer.ids, right.cold.ids)
        if not answer.ids:
            found.append(f"{part.way}: {prompt.name}: no ids: {answer.text!r}")
        elif _is_judged(part, right) and at is not None:
            found.append(f"{part.way}: {prompt.name}: ids differ at {at}: {answer.text!r}, alone {right.cold.text!r}")
    return found


def judged(parts: Sequence[Part], references: Mapping[str, Reference]) -> int:
    """Answers through PegaFlow whose ids are compared with those of the plain vLLM. Without any, nothing is proven."""
    return sum(_is_judged(part, references[prompt.name]) for part in parts for prompt in part.prompts)


def told_alone(prompts: Sequence[Prompt], references: Mapping[str, Reference]) -> int:
    """Secrets that the plain vLLM told. Who is compared with one that tells none may have lost everything."""
    return sum(told(prompt, references[prompt.name].cold) for prompt in prompts if prompt.name in references)


def other_scores(parts: Sequence[Part], references: Mapping[str, Reference]) -> list[str]:
    """Secrets that were told in one way and not by the plain vLLM, or the other way round. On every path."""
    return [
        f"{part.way}: {prompt.name}: {answer.text!r}, alone {references[prompt.name].cold.text!r}"
        for part in parts
        for prompt, answer in zip(part.prompts, part.answers, strict=True)
        if told(prompt, answer) != told(prompt, references[prompt.name].cold)
    ]


def unproven(part: Part) -> list[str]:
    """What the counters say against this way: that somebody computed what was to be loaded, or that pages came from elsewhere."""
    grown = part.grown
    if grown is None:
        return []
    before_last = sum(pages_before_last(prompt) for prompt in part.prompts)
    # Of a prompt that is sent whole D computes the last position, so nobody needs the page that only that one is in.
    again = len(part.replayed)
    pages = sum(pages_before_last(prompt) if prompt.name in part.replayed else prompt.pages for prompt in part.prompts)
    ids = sum(len(prompt.ids) for prompt in part.prompts)
    full = sum(len(prompt.ids) // BLOCK_SIZE for prompt in part.prompts)
    rest = sum(after_full_pages(len(prompt.ids)) for prompt in part.prompts)
    to_b = grown.b_pages_fetched + grown.b_disk_pages_read
    match part.way:
        case Way.COLD:
            claims = [
                ("positions computed on P", grown.p_positions, ids, grown.p_positions == ids),
                ("pages fetched by tier b", grown.b_pages_fetched, pages, grown.b_pages_fetched >= pages),
            ]
        case Way.DISK:
            claims = [
                ("positions computed on P", grown.p_positions, rest, grown.p_positions == rest),
                ("pages read from disk by tier a", grown.a_disk_pages_read, full, grown.a_disk_pages_read >= full),
                ("pages fetched or read from disk by tier b", to_b, pages, to_b >= pages),
            ]
        case Way.REMOTE:
            count = len(part.prompts)
            claims = [
                ("positions computed on P", grown.p_positions, 0, grown.p_positions == 0),
                ("positions computed on D", grown.d_positions, count, grown.d_positions == count),
                ("pages fetched by tier b", grown.b_pages_fetched, before_last, grown.b_pages_fetched >= before_last),
                ("pages loaded on D", grown.d_pages_loaded, before_last, grown.d_pages_loaded >= before_last),
                ("pages read from disk by tier b", grown.b_disk_pages_read, 0, grown.b_disk_pages_read == 0),
            ]
        case _:
            claims = []
    if part.way in (Way.COLD, Way.DISK):
        claims += [
            ("prompt positions computed on D", grown.d_prompt_positions, again, grown.d_prompt_positions == again),
            ("requests replayed", grown.replays, again, grown.replays == again),
        ]
    return [
        f"{part.way}: {part.group}: {what}: {value:.0f}, expected {wanted}" for what, value, wanted, holds in claims if not holds
    ]


def pages_before_last(prompt: Prompt) -> int:
    """Of all positions but the last one, which vLLM always computes itself."""
    return -(-(len(prompt.ids) - 1) // BLOCK_SIZE)


def row(part: Part, references: Mapping[str, Reference]) -> dict[str, Any]:
    """Of the table."""
    pairs = list(zip(part.prompts, part.answers, strict=True))
    differ = [
        at for prompt, answer in pairs if (at := first_difference(answer.ids, references[prompt.name].cold.ids)) is not None
    ]
    found: dict[str, Any] = {"prompts": part.group, "ids": part.ids, "way": str(part.way)}
    found["score"] = _score(pairs)
    for depth in DEPTHS:
        found[f"at {depth} %"] = _score([pair for pair in pairs if pair[0].depth == depth])
    found["ids equal"] = f"{len(pairs) - len(differ)} of {len(pairs)}"
    found["first differs at"] = min(differ, default="-")
    found["path"] = _path_said(part, references)
    found |= {"computed on P": "-", "computed on D": "-"}
    if part.grown is not None:
        # Of a router's request the last position on D is P's token, which is not of the prompt.
        on_d = part.grown.d_positions if part.way is Way.REMOTE else part.grown.d_prompt_positions
        found |= {"computed on P": round(part.grown.p_positions), "computed on D": round(on_d)}
        found["from disk"] = round(part.grown.a_disk_pages_read + part.grown.b_disk_pages_read)
        found["from the other tier"] = round(part.grown.b_pages_fetched)
    times = [answer.first_after for answer in part.answers if answer.first_after is not None]
    found["first token ms"] = median(times) * 1e3 if times else "-"
    return found


def percent_told(part: Part) -> float:
    return 100 * sum(told(prompt, answer) for prompt, answer in zip(part.prompts, part.answers, strict=True)) / len(part.prompts)


def _score(pairs: Sequence[tuple[Prompt, Answer]]) -> str:
    asked = [pair for pair in pairs if pair[0].secret]
    return f"{sum(told(*pair) for pair in asked)} of {len(asked)}" if asked else "-"


def _is_judged(part: Part, reference: Reference) -> bool:
    if part.way in (Way.DIRECT, Way.AGAIN):
        return False
    return path(part.way, part.ids) is Path.SAME or _decided(part, reference)


def _decided(part: Part, reference: Reference) -> bool:
    return path(part.way, part.ids) is Path.OWN_CACHE and reference.cold.ids == reference.again.ids


def _path_said(part: Part, references: Mapping[str, Reference]) -> str:
    """With what follows from it for the judgement."""
    taken = path(part.way, part.ids)
    if taken is Path.OTHER:
        return f"{taken}: not judged"
    if taken is Path.OWN_CACHE and part.way is not Way.AGAIN:
        undecided = sum(not _decided(part, references[prompt.name]) for prompt in part.prompts)
        return f"{taken}" + (f": {undecided} not judged, that differs from cold" if undecided else "")
    return str(taken)
