"""Every fault point: the process that reaches it dies, stands still or raises there. Afterwards: no wrong byte was read, all is
in service again by itself (a supervisor starts what has ended), and nothing is held by anybody.

    PEGAFLOW_FAULTS=all pytest tests/process/test_fault_points.py      every point × kill, stop, raise; without it: SOME of them

That every point can be reached at all is tested always, by `test_every_point_is_reached`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pegaflow.common import faults
from pegaflow.common.fault_points import BY_NAME, Point
from story import Story

pytestmark = pytest.mark.timeout(300)

FAULTS = "kill", "stop", "raise"
SOME = (
    "tier.attached.before_sent:kill",
    "tier.intent.before_applied:raise",
    "tier.grant.after_table:kill",
    "tier.grant.after_table:stop",
    "tier.grant.after_table:raise",
    "tier.grant.after_sent:stop",
    "tier.written.before_applied:raise",
    "tier.hash.before_started:raise",
    "tier.hashed.before_applied:raise",
    "tier.seal.after_table:kill",
    "tier.seal.after_table:raise",
    "tier.delta.before_sent:raise",
    "tier.hits.before_sent:raise",
    "tier.hits.after_sent:stop",
    "tier.release.before_applied:raise",
    "tier.pin.before_sent:raise",
    "tier.pinned.before_sent:stop",
    "tier.read.before_post:raise",
    "tier.read.after_post:raise",
    "tier.read_ended.before_applied:raise",
    "tier.member_dead.after_applied:kill",
    "tier.backed.before_applied:kill",
    "tier.slab.before_adopted:kill",
    "tier.old_writer.before_freed:stop",
    "tier.drain.before_bye:kill",
    "tier.evict.before_table:raise",
    "tier.evict.after_table:kill",
    "tier.disk_write.before_log:kill",
    "tier.disk_write.before_pages:raise",
    "tier.disk_written.before_applied:raise",
    "tier.disk_read.before_report:stop",
    "tier.disk_drop.after_log:raise",
    "tier.segment.before_adopted:kill",
    "mover.read.before_post:kill",
    "mover.read.after_post:stop",
    "mover.read.before_report:raise",
    "metaserver.delta.before_applied:raise",
    "metaserver.node_up.before_sent:kill",
    "metaserver.located.before_sent:raise",
    "metaserver.sync_chunk.before_applied:stop",
    "connector.save.before_copy:kill",
    "connector.written.before_sent:raise",
    "connector.save.after_copy:kill",
    "connector.load.before_copy:kill",
    "connector.load.after_copy:raise",
)
"""What CI runs."""

LATE = "mover.read.before_post:delay=2.6"
"""Makes a READ miss its deadline."""
LATE_DISK = "tier.disk_read.before_bytes:delay=3.3"
"""Makes a read from disk miss its own."""


def way_to(story: Story, point: Point) -> tuple[str, str]:
    """The act that reaches a point, and a second fault that it needs."""
    name = str(point.value)
    prefixes = {
        "tier.give_up": ("fetch", LATE),
        "tier.quarantine": ("fetch", LATE),
        "mover.give_up": ("fetch", LATE),
        "tier.evict": ("spill", ""),
        "tier.disk_write": ("spill", ""),
        "tier.disk_segment": ("spill", ""),
        "tier.disk_read": ("recall", ""),
        "tier.disk_give_up": ("recall", LATE_DISK),
        "tier.disk_drop": ("overflow", ""),
        "tier.segment": ("restart_with_disk", ""),
        "tier.start": ("restart_tier", ""),
        "tier.backed": ("renew_tier", ""),
        "tier.slab": ("restart_tier", ""),
        "tier.old_writer": ("lose_writer", ""),
        "mover.start": ("restart_tier", ""),
        "tier.drain": ("drain_tier", ""),
        "tier.close": ("drain_tier", ""),
        "metaserver.bye": ("drain_tier", ""),
        "metaserver.node_down": ("drain_tier", ""),
        "metaserver.disconnect": ("drain_tier", ""),
        "metaserver.start": ("restart_metaserver", ""),
        "metaserver.connect": ("restart_metaserver", ""),
        "metaserver.sync": ("restart_metaserver", ""),
        "metaserver.node_up": ("restart_metaserver", ""),
        "tier.sync": ("restart_metaserver", ""),
        "tier.attach": ("replace_engine", ""),
        "tier.session_beat": ("replace_engine", ""),
        "tier.detach": ("replace_engine", ""),
        "tier.member_dead": ("kill_engine", ""),
        "tier.forget": ("kill_engine", ""),
        "tier.free": ("abandon", ""),
        "tier.abandoned": ("abandon", ""),
        "tier.cancel": ("cancel", ""),
        "connector.lock": ("replace_engine", ""),
        "connector.attach": ("replace_engine", ""),
        "connector.pool": ("replace_engine", ""),
        "connector.join": ("replace_engine", ""),
        "connector.detach": ("replace_engine", ""),
        "connector.session": ("restart_tier", ""),
        "connector.abandoned": ("abandon", ""),
        "connector.cancel": ("cancel", ""),
    }
    return next((way for prefix, way in prefixes.items() if name.startswith(prefix)), ("turn", ""))


@pytest.fixture(scope="module")
def stage() -> Iterator[list[Story]]:
    """The story that goes on from test to test, until one leaves it in disorder."""
    going_on: list[Story] = []
    yield going_on
    for story in going_on:
        story.__exit__(None, None, None)


@pytest.fixture
def story(stage: list[Story]) -> Iterator[Story]:
    if not stage:
        folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
        folder.mkdir(mode=0o700)
        stage.append(Story(folder).__enter__())
    story = stage[0]
    story.in_order = False
    yield story
    if not story.in_order:
        stage.clear()
        story.__exit__(None, None, None)


def repeated(story: Story, act: Callable[[], None], point: Point) -> None:
    """On a busy machine a save may not be granted in time, and then nothing of it gets to disk."""
    while f"{point.value}:note" not in faults.seen(story.control.marks):  # the test's own time ends it
        act()


def test_every_point_is_reached(story: Story) -> None:
    story.control.arm(f"*:note,{LATE},{LATE_DISK}")
    for act in (story.fetch, story.abandon, story.cancel, story.turn, story.replace_engine):
        act()
    repeated(story, story.recall, Point.TIER_DISK_GIVE_UP_BEFORE_SENT)
    repeated(story, story.overflow, Point.TIER_DISK_DROP_AFTER_LOG)
    story.settle()
    story.kill_engine()
    story.settle()
    story.restart_metaserver()
    story.settle()
    story.drain_tier()
    story.settle()
    story.lose_writer()
    story.settle()
    story.renew_tier()
    story.settle()
    reached = {mark.rpartition(":")[0] for mark in faults.seen(story.control.marks)}
    assert {str(point.value) for point in Point} - reached == set()


def test_the_text_of_some_is_right() -> None:
    assert len(set(SOME)) == len(SOME) == len(faults.parse(",".join(SOME))) >= 30


def chosen() -> list[str]:
    if os.environ.get("PEGAFLOW_FAULTS") == "all":
        return [f"{point.value}:{how}" for point in Point for how in FAULTS]
    return list(SOME)


@pytest.mark.parametrize("fault", chosen())
def test_after_a_fault_everything_is_as_before(story: Story, fault: str) -> None:
    act, beside = way_to(story, BY_NAME[fault.partition(":")[0]])
    if beside.startswith(fault.partition(":")[0]):
        beside = ""
    story.suffer(fault, getattr(story, act), beside)
