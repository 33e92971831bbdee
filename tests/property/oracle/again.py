"""The same prompts once more, alone, with nothing in vLLM's own cache: everything that is stored has to be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oracle.request import Kind, Request

if TYPE_CHECKING:
    from oracle.machine import OracleMachine

AT_MOST = 2
"""Prompts: each costs several steps."""


def ask_again(machine: OracleMachine) -> None:
    """Each prompt as it was (a replay), or with the token that a prefill engine would have forwarded (a splice)."""
    kinds = (Kind.PLAIN, Kind.SALTED, Kind.ADAPTED)
    before = [request for request in machine.ended if request.kind in kinds]
    for number, first in enumerate(before[-AT_MOST:]):
        assert machine.pool.reset(), "blocks are held"
        spliced = number % 2
        prompt = len(first.prompt_token_ids) + spliced
        request = Request(
            f"again{number}", machine.prefixes, first.text, prompt, 1, first.kind, machine.shape.engine.hash_block_size
        )
        wanted = machine.ledger.loadable(request)
        machine.scheduler.add(request)
        machine.drain()
        machine.ledger.loaded(request, wanted)
        machine.sound()
