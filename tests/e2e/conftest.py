"""One deployment for all tests of the whole chain: starting it takes minutes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deployment import plan as planning
from deployment.cases import PromptMaker
from deployment.http import Json, Server
from deployment.plan import Plan
from deployment.ports import from_system
from deployment.readiness import wait_all
from deployment.reference import References, collect
from deployment.supervision import SERVICES, Supervision
from environment.checkout import CONFIGS

from . import parity
from .parity import Places, Reply


class Deployment(NamedTuple):
    """Ready to be asked; `references` and, by name of a case, `parity` (body, reply) are of one vLLM alone, stopped by then."""

    plan: Plan
    supervision: Supervision
    prompts: PromptMaker
    references: References
    parity: dict[str, tuple[Json, Reply]]

    @property
    def router(self) -> Server:
        return Server(self.plan.ports.router)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    run = tmp_path_factory.mktemp("run")
    config = Path(shutil.copy(CONFIGS / "pegaflow.toml", run))  # a test may change it
    plan = planning.make(run, from_system(), config=config)
    supervision = Supervision(plan)
    try:
        supervision.start([*SERVICES, "reference"])
        wait_all(supervision, [*SERVICES, "reference"], plan.ports)
        prompts = PromptMaker(plan.model, plan.model_name)
        references = collect(Server(plan.ports.reference), prompts)
        alike = _ask_alone(plan, prompts)
        supervision.stop_one("reference")
        yield Deployment(plan, supervision, prompts, references, alike)
    finally:
        supervision.stop()


def _ask_alone(plan: Plan, prompts: PromptMaker) -> dict[str, tuple[Json, Reply]]:
    reference = Server(plan.ports.reference)

    def first_ids(path: str, body: Json) -> list[int]:
        choice = reference.post(path, body | {"model": plan.model_name, "return_token_ids": True})["choices"][0]
        ids: list[int] = choice["token_ids"]
        return ids

    places = Places(plan.model / "tokenizer.json", lambda length: prompts.completion("parity", length).body["prompt"], first_ids)
    replies: dict[str, tuple[Json, Reply]] = {}
    for case in parity.cases():
        body = {"model": plan.model_name} | places.filled(case)
        replies[case.name] = (body, parity.ask(plan.ports.reference, case.path, body))
    return replies
