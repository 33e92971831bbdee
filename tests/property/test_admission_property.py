"""Open requests per key, against a plain list of who is in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.admission import Admission

steps = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60)


@settings(deadline=None)
@given(st.integers(0, 3), steps)
def test_nobody_exceeds_the_limit_and_nobody_else_suffers(limit: int, acts: list[tuple[str, bool]]) -> None:
    admission, inside = Admission(limit), Counter[str]()
    for name, enters in acts:
        if enters:
            admitted = admission.enter(name)
            assert admitted == (limit == 0 or inside[name] < limit)
            inside[name] += admitted
        elif inside[name]:
            admission.leave(name)
            inside[name] -= 1
        admission.validate()
        assert all(admission.open(one) == inside[one] for one in "abc")
    for name in inside.elements():
        admission.leave(name)
    assert [admission.open(one) for one in "abc"] == [0, 0, 0]
