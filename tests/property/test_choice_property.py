"""Choosing engines: load is respected whatever they hold, and what is remembered stays bounded."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.affinity import NAMES, PrefixMemory
from pegaflow.services.router.policy import SLACK, Candidate, Policy, choose

NAMED = ["a", "b", "c", "d"]
candidates = st.lists(
    st.builds(Candidate, st.sampled_from(NAMED), st.integers(0, 9), st.integers(0, 99), st.integers(0, 3)),
    unique_by=lambda one: one.name,
)
avoided = st.frozensets(st.sampled_from(NAMED))


@settings(deadline=None)
@given(st.sampled_from(Policy), candidates, avoided)
def test_who_is_chosen(policy: Policy, some: list[Candidate], avoid: frozenset[str]) -> None:
    name = choose(policy, some, avoid)
    if not some:
        assert name is None
        return
    (chosen,) = [one for one in some if one.name == name]
    rivals = [one for one in some if one.name not in avoid]
    assert chosen.name not in avoid or not rivals, "a wish is granted where it can be"
    rivals = rivals or some
    if not any(one.held for one in rivals):
        if policy is Policy.ROUND_ROBIN:
            assert chosen.turn == min(one.turn for one in rivals)
        else:
            assert chosen.load == min(one.load for one in rivals)
        return
    bound = math.ceil(SLACK * (sum(one.load for one in rivals) + 1) / len(rivals))
    assert chosen.load < bound
    for one in rivals:
        assert one.load >= bound or (-chosen.held, chosen.load, chosen.turn) <= (-one.held, one.load, one.turn)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200), st.sampled_from([Policy.PREFIX, Policy.LEAST_LOADED]))
def test_one_prefix_that_everybody_asks_for_spreads(steps: list[tuple[bool, bool]], policy: Policy) -> None:
    """Open and close legs, all of one prefix or of none: no engine has more than a quarter above its share, and one."""
    memory, loads, turns = PrefixMemory(), Counter[str](), Counter[str]()
    prompt = [b"1", b"2"]
    for turn, (opens, popular) in enumerate(steps):
        if not opens:
            busiest = max(NAMED, key=lambda name: loads[name])
            loads[busiest] -= loads[busiest] > 0
            continue
        marks = prompt if popular and policy is Policy.PREFIX else []
        held = memory.held(marks)
        name = choose(policy, [Candidate(one, loads[one], turns[one], held.get(one, 0)) for one in NAMED], frozenset())
        assert name is not None
        memory.sent(marks, name)
        loads[name] += 1
        turns[name] = turn
        assert loads[name] <= math.ceil(SLACK * loads.total() / len(NAMED))


prompts = st.lists(st.sampled_from([b"x", b"y", b"z"]), max_size=6).map(
    lambda parts: [b"".join(parts[: n + 1]) for n in range(len(parts))]
)


@settings(deadline=None)
@given(st.lists(st.tuples(prompts, st.sampled_from(NAMED)), max_size=40), st.integers(1, 50))
def test_what_was_sent_is_remembered_up_to_a_bound(steps: list[tuple[list[bytes], str]], capacity: int) -> None:
    memory = PrefixMemory(capacity)
    naive: dict[bytes, list[str]] = {}
    for prompt, name in steps:
        memory.sent(prompt, name)
        for mark in prompt:
            naive[mark] = [name, *(one for one in naive.get(mark, []) if one != name)][:NAMES]
        assert len(memory) <= capacity
        for asked, _ in steps:
            for engine, chunks in memory.held(asked).items():
                assert all(engine in naive[mark] for mark in asked[:chunks])
                if len(naive) <= capacity and chunks < len(asked):
                    assert engine not in naive.get(asked[chunks], [])
        if len(prompt) <= capacity:
            assert memory.held(prompt).get(name, 0) == len(prompt), "the last one is remembered whole"
