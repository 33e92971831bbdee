"""Where the connector's threads may run."""

from __future__ import annotations

import os
import threading

import pytest
from pegaflow.connector.cores import cores, nodes, reach, unbound


@pytest.mark.parametrize(("text", "expected"), [("0-1\n", {0, 1}), ("0,2-3,8", {0, 2, 3, 8}), ("5", {5}), ("\n", set())])
def test_a_list_of_the_kernel(text: str, expected: set[int]) -> None:
    assert cores(text) == expected


def test_threads_reach_the_free_cores_of_their_own_node_only() -> None:
    two_nodes = [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert reach({0}, {0, 1, 2, 3, 4, 5, 6, 7}, two_nodes) == {0, 1, 2, 3}
    assert reach({5}, {1, 5, 6}, two_nodes) == {5, 6}, "not beyond what the operator allows"
    assert reach({3, 4}, {2, 3, 4, 5}, two_nodes) == {2, 3, 4, 5}
    assert reach({0}, {0, 1}, []) == {0, 1}, "no NUMA"
    assert reach({0}, {1}, [{0, 1}]) == {0, 1}, "never less than before"


def test_a_thread_started_within_is_not_bound_and_the_caller_is_again() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def start() -> None:
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()

    bound = {min(before)}
    os.sched_setaffinity(0, bound)
    try:
        with unbound(True):
            start()
        assert os.sched_getaffinity(0) == bound
        with unbound(False):
            start()
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [reach(bound, os.sched_getaffinity(os.getppid()), nodes()), bound]
