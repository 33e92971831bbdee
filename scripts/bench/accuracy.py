"""Do answers stay the same when pages come from elsewhere? The same prompts to one vLLM alone and in three ways through PegaFlow.

    scripts/bench/accuracy [--quick] [--lengths 1,2,4,7] [--keys 4] [--shorts 100] [--json FILE] [--svg FOLDER] [--disk-dir DIR]

NOTE: clients, engines and tiers share this machine's cores; times to a first token say how ways compare within this run, no more.

needles    a pass word in text of 1k, 2k, 4k and 7k ids, 10, 50 and 90 % deep, 4 pass words: told or not
shorts     100 questions and beginnings of texts: nothing is right or wrong, ids are compared
All text is the standard library's: its manual and its docstrings. SmolLM2-135M, float32, greedy, one request at a time.

direct vLLM                      one vLLM without connector, alone; and once more with the prompt in its own cache
P/D first token                  through the router, never seen before: P computes, D loads
D, warm from the remote tier     tier b lost everything: D asked alone, pages come from tier a, the last position is computed
P/D, tiers restarted from disk   both tiers killed, their memory lost: P loads what tier a finds on disk, D what comes from there

Counters must show that each way was really gone: what P and D computed, pages fetched, pages read from disk.
Ids must be equal where every position was computed in a step of the same size (needles/path.py); column `path` says where not.
Exit codes: 0 all is equal, 1 a score or ids differ, a way was not gone, no ids were judged, or the plain vLLM told no pass word,
69 something is missing, 130 interrupted (what was found is shown).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from needles.drawings import charts
from needles.pace import Pace
from needles.path import Way
from needles.prompts import DEPTHS, HOUSES, Prompt, batches, check, needles, shorts
from needles.score import Part, Reference, joined, judged, other_scores, row, told_alone, unproven, wrong
from needles.site import Site, batch_pages, disk_bytes, pool_bytes
from needles.texts import docs, manual
from needles.ways import alone, answered, measured_pace
from report import Goal, at_least, at_most, show
from tokenizers import Tokenizer

from deployment import ports as numbers
from deployment.cases import PromptMaker
from deployment.http import HttpFailure
from deployment.plan import MEMORY, MODEL_NAME
from environment.checkout import CACHE, MODEL
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.preflight import GIB, check_disk, check_memory
from environment.progress import say, step


class Scale(NamedTuple):
    """`lengths` of needles in 1,024 ids; `keys`: pass words; `shorts`: short prompts."""

    lengths: Sequence[int]
    keys: int
    shorts: int


FULL: Final = Scale((1, 2, 4, 7), 4, 100)
QUICK: Final = Scale((1, 2), 1, 10)
INTERRUPTED: Final = 130
MEMORY_BYTES: Final = 6 * GIB
"""Two vLLMs of nearly 3 GiB each; the pools are asked for apart."""


def make(lengths: Sequence[int], keys: int, count: int) -> list[Prompt]:
    """Raises Complaint where the standard library is not whole, or options ask for too much."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    try:
        prompts = [*needles(encode, manual(), lengths, DEPTHS, keys), *shorts(encode, docs(), count)]
        check(prompts)
    except (OSError, ValueError) as error:
        raise Complaint("no_prompts", str(error)) from None
    return prompts


@dataclass(slots=True)
class Found:
    """Of a run, as it comes. `references` by prompt; `against`: what says that a way was not gone."""

    parts: list[Part] = field(default_factory=list)
    references: dict[str, Reference] = field(default_factory=dict)
    against: list[str] = field(default_factory=list)


def measure(prompts: list[Prompt], run: Path, disk: Path, found: Found) -> None:
    """Raises Complaint, HttpFailure; what was found until then is in `found`."""
    maker = PromptMaker(MODEL, MODEL_NAME)
    pages = sum(prompt.pages for prompt in prompts)
    grouped = batches(prompts, batch_pages(pool_bytes(pages)))
    groups = [group for batch in grouped for group in batch]
    with Site(run, disk, numbers.from_system(), pages) as site:

        def ask(way: Way, groups: list[list[Prompt]]) -> None:
            for group in groups:
                found.parts.append(answered(site, way, group, maker))

        with site.reference() as server:
            tell(measured_pace(server), prompts, len(grouped))
            for group in groups:
                parts, right = alone(server, group, maker)
                found.references |= right  # first: whatever ends this, no part is without its own
                found.parts += parts
        site.start()
        for batch in grouped:
            ask(Way.COLD, batch)
            site.lose_b()
            ask(Way.REMOTE, batch)
        site.to_disk(pages)
        if (kept := site.lose_memory(pages)) < pages:
            found.against.append(f"tier a found {kept} pages on disk, expected {pages}")
        ask(Way.DISK, groups)


def tell(pace: Pace, prompts: list[Prompt], restarts: int) -> None:
    minutes = pace.run(prompts, restarts) / 60
    speed = f"prefill {pace.rate(1024):.0f} ids/s at 1k, {pace.rate(4096):.0f} at 4k, a decoded id {pace.token * 1e3:.0f} ms"
    say(f"{len(prompts)} prompts, four ways: about {minutes:.0f} min ({speed}); fewer with --lengths, --keys, --shorts")


def report(found: Found, asked: argparse.Namespace) -> list[Goal]:
    """Prints and writes everything. It is about the prompts that the plain vLLM was asked; other parts there are none."""
    whole, references = joined(found.parts), found.references
    ids, scores = [text for part in whole for text in wrong(part, references)], other_scores(whole, references)
    against = found.against + [text for part in whole for text in unproven(part)]
    goals = [
        at_most("answers whose score is not that of the plain vLLM", len(scores), 0),
        at_most("answers whose ids differ on the same path", len(ids), 0),
        at_most("counters that say a way was not gone", len(against), 0),
        at_least("answers whose ids were judged", judged(whole, references), 1),
    ]
    if secrets := [prompt for part in whole if part.way is Way.DIRECT for prompt in part.prompts if prompt.secret]:
        goals.append(at_least("pass words that the plain vLLM told", told_alone(secrets, references), 1))
    tables = [[row(part, references) for part in whole]]
    if failures := [*scores, *ids, *against]:
        tables.append([{"FAILED": text} for text in failures])
    show(tables, goals, asked.json)
    if asked.svg is not None:
        asked.svg.mkdir(parents=True, exist_ok=True)
        for name, text in charts(whole).items():
            (asked.svg / name).write_text(text, encoding="utf-8")
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="needles of 1k and 2k with one key, 10 short prompts")
    parser.add_argument("--lengths", type=_thousands, help="of needles, in 1,024 ids, comma separated (1 to 7)")
    parser.add_argument("--keys", type=int, choices=range(len(HOUSES) + 1), help="pass words; 0: no needles", metavar="N")
    parser.add_argument("--shorts", type=int, help="short prompts")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="scores and times to a first token, by length")
    parser.add_argument("--disk-dir", type=Path, default=CACHE, help="where the tiers' disk level lies for so long")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the processes' logs there")
    asked = parser.parse_args()
    usual = QUICK if asked.quick else FULL
    lengths = asked.lengths if asked.lengths is not None else usual.lengths
    keys = asked.keys if asked.keys is not None else usual.keys
    count = asked.shorts if asked.shorts is not None else usual.shorts
    if not keys and count < 1:
        parser.error("neither needles nor short prompts: nothing would be compared")
    signal.signal(signal.SIGTERM, _terminated)
    interrupted, failed = False, None
    began, found = time.monotonic(), Found()
    try:
        with contextlib.ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):
            with step("make the prompts"):
                prompts = make(lengths, keys, count)
            asked.disk_dir.mkdir(parents=True, exist_ok=True)
            disk = stack.enter_context(tempfile.TemporaryDirectory(prefix="accuracy-", dir=asked.disk_dir))
            run = asked.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pegaflow-accuracy-")))
            run.mkdir(parents=True, exist_ok=True)
            pages = sum(prompt.pages for prompt in prompts)
            check_memory(MEMORY_BYTES + 2 * pool_bytes(pages))
            check_disk(MEMORY, 2 * pool_bytes(pages) + GIB // 2)
            check_disk(Path(disk), disk_bytes(pages))
            measure(prompts, run.resolve(), Path(disk).resolve(), found)
    except (Complaint, HttpFailure) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        if not any(part.grown for part in found.parts):
            return EX_UNAVAILABLE
        found.against.append(f"ended before its time: {error}")
    except KeyboardInterrupt:
        print("accuracy: interrupted", file=sys.stderr)
        if not found.parts:
            return INTERRUPTED
        interrupted = True
        found.against.append("ended before its time: interrupted")
    except Exception as error:  # a fault of the benchmark takes nothing away from what was found before it
        if not found.parts:
            raise
        failed = error
        found.against.append(f"ended before its time: {type(error).__name__}: {error}")
    goals = report(found, asked)
    print(f"{len(found.references)} prompts in {(time.monotonic() - began) / 60:.1f} min", file=sys.stderr)
    if failed is not None:
        raise failed
    return INTERRUPTED if interrupted else 0 if all(goal.met for goal in goals) else 1


def _thousands(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if not all(1 <= each <= 7 for each in found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 to 7, each once")
    return found


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
