"""What /openapi.json says is what the router does: schemathesis makes requests from it and compares every answer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import pytest
from pegaflow.services.router.schema import document
from router_process import router, until_ready
from scripted_engine import Call, Generation, Json, ScriptedEngine, error_response, respond

EXAMPLES = 25
"""For each operation and phase. What is drawn is the same each time."""


class Judge(ScriptedEngine):
    """An engine that refuses exactly what the document does not allow, and answers all else."""

    def __init__(self, described: Json) -> None:
        super().__init__()
        self._valid = {
            path: jsonschema_rs.validator_for(operations["post"]["requestBody"]["content"]["application/json"]["schema"])
            for path, operations in described["paths"].items()
            if "post" in operations
        }

    async def answer(self, call: Call) -> Any:
        if not self._valid[call.path].is_valid(call.body):
            return error_response(400, "not as described")
        # Which numbers fit each other is between the fields, and not in any document.
        spare = {"max_tokens", "max_completion_tokens", "min_tokens"}
        call.body = {name: value for name, value in call.body.items() if name not in spare}
        if call.chat:
            call.body["messages"] = [{"role": "x", "content": "x"}]
        elif not isinstance(call.body["prompt"], str) or len(call.body["prompt"]) > 100:
            call.body["prompt"] = "x"
        generation = Generation(self, call)
        return await respond(call, generation)


@pytest.mark.parametrize(("split", "keyed"), [(True, False), (False, True)])
def test_schemathesis_finds_nothing(split: bool, keyed: bool, tmp_path: Path) -> None:
    async def main() -> None:
        described = document(keyed=keyed, split=split)
        one, two = Judge(described), Judge(described)
        file = tmp_path / "keys"
        file.write_text("tester:sk-tester\n")
        async with one.running(), two.running(), aiohttp.ClientSession() as session:
            argv = ["--prefill", one.url, "--decode", two.url, "--pd-first-token"] if split else ["--engine", one.url]
            if keyed:
                argv += ["--api-keys-file", str(file)]
            async with router(*argv) as running:
                await until_ready(session, running.url)
                async with session.get(running.url + "/openapi.json") as response:
                    assert await response.json() == described
                code, said = await schemathesis(
                    tmp_path, running.url, *(("-H", "Authorization: Bearer sk-tester") if keyed else ())
                )
                assert code == 0, said
                assert len(one.calls) > EXAMPLES  # and it was no empty run
                assert b'"level": "error"' not in running.raw, running.raw.decode()

    asyncio.run(main())


async def schemathesis(folder: Path, url: str, *argv: str) -> tuple[int | None, str]:
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/openapi.json", "--checks=all", "--seed=1", "--no-color",
        f"--max-examples={EXAMPLES}", "--generation-deterministic", *argv,
    ]  # fmt: skip
    # It keeps what it found in the current folder.
    pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=pipe, stderr=same)
    said, _ = await process.communicate()
    return process.returncode, said.decode()
