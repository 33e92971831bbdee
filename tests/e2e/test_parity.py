"""A client cannot tell the router from one vLLM: each request of tests/parity, field by field."""

from __future__ import annotations

import pytest

from . import parity
from .conftest import Deployment
from .parity import Case

pytestmark = pytest.mark.timeout(1500)  # the first test may start the deployment

CASES = list(parity.cases())


def test_there_are_enough() -> None:
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_router_answers_as_one_vllm(deployment: Deployment, case: Case) -> None:
    body, expected = deployment.parity[case.name]
    reply = parity.ask(deployment.plan.ports.router, case.path, body)
    assert (reply.status, reply.content_type) == (expected.status, expected.content_type), reply.body
    assert expected.faults == [], "the reference"
    assert reply.faults == []
    assert list(parity.differences(expected.body, reply.body)) == []
