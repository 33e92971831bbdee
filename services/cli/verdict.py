"""Why a page is not there, out of what the tiers say of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from pegaflow.common.wire.messages.inspection import Step
from pegaflow.services.cli.sight import Copy, Moment
from pegaflow.services.cli.table import ago, span


class Cause(StrEnum):
    """The answer in one word. Stable: programs may ask for it."""

    THERE = "there"
    PENDING = "pending"
    STALE = "stale"
    EVICTED = "evicted"
    DROPPED = "dropped"
    ABANDONED = "abandoned"
    NO_SPACE = "no_space"
    REFUSED = "refused"
    FETCH_FAILED = "fetch_failed"
    OWNER_DEAD = "owner_dead"
    OTHER_FINGERPRINT = "other_fingerprint"
    NEVER_SAVED = "never_saved"


class Verdict(NamedTuple):
    """The cause, and a sentence for people with where, when and by whom."""

    cause: Cause
    text: str


class Other(NamedTuple):
    """Another fingerprint: its label, the factors that differ, and whether it has this block (None: that cannot be told)."""

    label: str
    differing: str
    has: bool | None


class Absent(NamedTuple):
    """A node that cannot be asked, or whose life ended: `reason` dead, bye, replaced or an error code; `sealed` None: unknown."""

    node: str
    reason: str
    ago_ms: int | None
    sealed: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one page. `moments`: the oldest first; `reaches_ms`: how far back each tier remembers."""

    copies: Sequence[Copy] = ()
    moments: Sequence[Moment] = ()
    reaches_ms: Mapping[str, int] = field(default_factory=dict)
    others: Sequence[Other] = ()
    absent: Sequence[Absent] = ()

    def before(self, saver: str) -> Evidence:
        """As it was before `saver` (an engine and its request) was granted the page itself; unchanged if somebody had it then."""
        own = (Step.GRANTED, saver)
        first = next((n for n, one in enumerate(self.moments) if (one.step, one.who) == own), None)
        if first is None or (first and self.moments[first - 1].step not in (*_ENDS, Step.FETCH_FAILED)):
            return self
        return replace(self, copies=(), moments=self.moments[:first])


_ENDS = {
    Step.EVICTED: Cause.EVICTED,
    Step.DISK_EVICTED: Cause.EVICTED,
    Step.BAD_CHECKSUM: Cause.DROPPED,
    Step.DISK_LOST: Cause.DROPPED,
    Step.HASH_FAILED: Cause.DROPPED,
    Step.ABANDONED: Cause.ABANDONED,
    Step.NO_SPACE: Cause.NO_SPACE,
    Step.REFUSED: Cause.REFUSED,
}


def verdict(evidence: Evidence) -> Verdict:
    """The most that can be said: what is there now, then how it ended, then what may have been."""
    return _now(evidence) or _ended(evidence) or _elsewhere(evidence) or _never(evidence)


def _now(evidence: Evidence) -> Verdict | None:
    by_state: dict[str, list[Copy]] = {}
    for copy in evidence.copies:
        by_state.setdefault(copy.state, []).append(copy)
    if sealed := by_state.get("sealed"):
        places = ", ".join(f"{copy.node} ({copy.level})" for copy in sealed)
        came = [moment for moment in evidence.moments if moment.step in (Step.SEALED, Step.FETCHED, Step.DISK_READ)]
        since = f", {came[-1].words()} {ago(came[-1].ago_ms)}" if came else ""
        return Verdict(Cause.THERE, f"it is there now: on {places}{since}")
    for state, cause, words in (
        ("pending", Cause.PENDING, "promised and not sealed yet"),
        ("fetching", Cause.PENDING, "on its way"),
    ):
        if found := by_state.get(state):
            return Verdict(cause, f"{words}: on {_whose(found[0], evidence)}")
    if found := by_state.get("stale"):
        return Verdict(Cause.STALE, f"promised by an engine that is silent since: on {_whose(found[0], evidence)}")
    return None


def _whose(copy: Copy, evidence: Evidence) -> str:
    granted = [moment for moment in evidence.moments if moment.node == copy.node and moment.step is Step.GRANTED]
    since = f", granted {ago(granted[-1].ago_ms)}" if granted else ""
    by = f", by {copy.engine} for request {copy.request}" if copy.engine else ""
    return f"{copy.node}{by}{since}"


def _ended(evidence: Evidence) -> Verdict | None:
    ends = [moment for moment in evidence.moments if moment.step in _ENDS]
    if ends:
        last = ends[-1]
        why = f" ({last.who})" if last.who else ""
        return Verdict(_ENDS[last.step], f"{last.words()} on {last.node} {ago(last.ago_ms)}{why}{_gone(evidence)}")
    failed = [moment for moment in evidence.moments if moment.step is Step.FETCH_FAILED]
    if not failed:
        return None
    last = failed[-1]
    owner, _, code = last.who.partition(" ")
    absent = next((one for one in evidence.absent if one.node == owner), None)
    text = f"{last.node} could not fetch it from {owner} {ago(last.ago_ms)} ({code})"
    if absent is not None:
        return Verdict(Cause.OWNER_DEAD, f"{text}; {_describe(absent)}")
    return Verdict(Cause.FETCH_FAILED, text)


def _elsewhere(evidence: Evidence) -> Verdict | None:
    for other in sorted(evidence.others, key=lambda one: one.has is not True):
        if other.has:
            return Verdict(
                Cause.OTHER_FINGERPRINT,
                f"these tokens are saved under another fingerprint, {other.label}: {other.differing or 'factors unknown'}",
            )
    return None


def _never(evidence: Evidence) -> Verdict:
    if lost := [one for one in evidence.absent if one.reason not in ("bye", "replaced") and one.sealed != 0]:
        return Verdict(
            Cause.OWNER_DEAD,
            f"no tier that answers has seen it; it may have been lost with a node: {'; '.join(map(_describe, lost))}",
        )
    likely = [other for other in evidence.others if other.has is None and other.differing]
    if likely:
        return Verdict(
            Cause.OTHER_FINGERPRINT,
            f"never saved under this fingerprint; {likely[0].label} names the same tokens differently: {likely[0].differing}",
        )
    return Verdict(Cause.NEVER_SAVED, f"never saved, as far back as the tiers remember ({_memory(evidence)}){_gone(evidence)}")


def _memory(evidence: Evidence) -> str:
    return ", ".join(f"{node}: {span(reach)}" for node, reach in sorted(evidence.reaches_ms.items())) or "no tier answers"


def _gone(evidence: Evidence) -> str:
    return f"; {'; '.join(map(_describe, evidence.absent))}" if evidence.absent else ""


def _describe(absent: Absent) -> str:
    when = f" {ago(absent.ago_ms)}" if absent.ago_ms is not None else ""
    pages = f" with {absent.sealed} pages" if absent.sealed else ""
    word = {"dead": "fell silent", "bye": "left", "replaced": "was restarted"}.get(
        absent.reason, f"does not answer: {absent.reason}"
    )
    return f"node {absent.node} {word}{when}{pages}"
