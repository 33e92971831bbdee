"""What the catalogue hears of a tier: deltas, digests and copies of all of it agree, whatever changes meanwhile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.common.wire.messages.catalogue import GONE, MEMORY, PENDING, SEALED
from pegaflow.services.tier.announced import PARTS, Announced, Entry, Past
from pegaflow.services.tier.by_use import ByUse

KEYS = [b"namespace-of-16B" + bytes((n % 3, n)) * (1 + n % 2) for n in range(12)]
CHANGES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([GONE, PENDING, SEALED, SEALED]), st.integers(1, 3)), max_size=8
)
STEPS = st.lists(st.tuples(CHANGES, st.booleans(), st.booleans()), max_size=12)


def copied(announced: Announced, past: Past) -> dict[bytes, Entry]:
    found: dict[bytes, Entry] = {}
    for at in range(PARTS):
        part = announced.part(past, at)
        assert not part.keys() & found.keys()
        found |= part
    return found


@given(STEPS)
@settings(max_examples=80, deadline=None)
def test_a_copy_is_what_was_there_when_it_began_and_deltas_tell_the_rest(
    steps: list[tuple[list[tuple[bytes, int, int]], bool, bool]],
) -> None:
    announced, there, heard = Announced(), dict[bytes, Entry](), dict[bytes, Entry]()
    pasts: list[tuple[Past, dict[bytes, Entry]]] = []
    for changes, remember, forget in steps:
        for key, state, size in changes:
            entry = None if state == GONE else (state, MEMORY, size)
            announced.set(key, entry)
            there.pop(key, None)
            if entry is not None:
                there[key] = entry
        changed, deltas = announced.flush()
        assert {key for delta in deltas for key in delta.keys} == set(changed)
        for delta in deltas:
            assert len({len(key) for key in delta.keys}) == 1
            for key, *columns in zip(delta.keys, delta.states, delta.levels, delta.sizes, strict=True):
                heard.pop(key, None)
                if columns[0] != GONE:
                    heard[key] = (columns[0], columns[1], columns[2])
        assert heard == there
        announced.validate(there)
        if remember:
            pasts.append((announced.remember(), dict(there)))
        if forget and pasts:
            announced.forget(pasts.pop(0)[0])
    for past, then in pasts:
        assert copied(announced, past) == then


@given(st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=6), st.none()), max_size=30))
@settings(max_examples=100, deadline=None)
def test_keys_come_by_their_last_use_however_they_were_added(steps: list[list[int] | None]) -> None:
    line, model, number = ByUse(), list[tuple[int, int]](), 0
    for turns in steps:
        if turns is None and model:
            best = max(turn for turn, _ in model)
            took = int(line.pop())
            assert (best, took) in model
            model.remove((best, took))
        elif turns is not None:
            line.add((b"%d" % (number + i), turn) for i, turn in enumerate(turns))
            model += [(turn, number + i) for i, turn in enumerate(turns)]
            number += len(turns)
        assert len(line) == len(model)
        assert {int(key) for key in line.keys()} == {one for _, one in model}  # noqa: SIM118 - it is no dictionary
