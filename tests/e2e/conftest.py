"""One deployment for all tests of the whole chain: starting it takes minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from deployment import plan as planning
from deployment.cases import PromptMaker
from deployment.http import Server
from deployment.plan import Plan
from deployment.ports import from_system
from deployment.readiness import wait_all
from deployment.reference import References, collect
from deployment.supervision import SERVICES, Supervision


class Deployment(NamedTuple):
    """Ready to be asked; `references` are the answers of one vLLM alone, which is stopped by then."""

    plan: Plan
    supervision: Supervision
    prompts: PromptMaker
    references: References

    @property
    def router(self) -> Server:
        return Server(self.plan.ports.router)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    plan = planning.make(tmp_path_factory.mktemp("run"), from_system())
    supervision = Supervision(plan)
    try:
        supervision.start([*SERVICES, "reference"])
        wait_all(supervision, [*SERVICES, "reference"], plan.ports)
        prompts = PromptMaker(plan.model, plan.model_name)
        references = collect(Server(plan.ports.reference), prompts)
        supervision.stop_one("reference")
        yield Deployment(plan, supervision, prompts, references)
    finally:
        supervision.stop()
