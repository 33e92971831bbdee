"""The clients that people point at the router, as they come: OpenAI's own, and vLLM's load generator."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from deployment.http import Json

from .conftest import Deployment

pytestmark = pytest.mark.timeout(1500)  # the first test may start the deployment

BENCH_SERVE = """
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""What `vllm bench serve` does. The command itself wants a package called vllm, and the one for CPUs has another name."""

COMPLETED = 8
OUTPUT_IDS = 6


@pytest.fixture
def client(deployment: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=deployment.router.url("/v1"), api_key="none", max_retries=0) as made:
        yield made


def asked(deployment: Deployment, name: str) -> tuple[Json, Any]:
    """A body of tests/parity, and what one vLLM answered."""
    body, reply = deployment.parity[name]
    return dict(body), reply.body


def test_models(deployment: Deployment, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [deployment.plan.model_name]


def test_a_chat_in_one_piece_and_as_a_stream(deployment: Deployment, client: openai.OpenAI) -> None:
    body, expected = asked(deployment, "chat: plain")
    said = expected["choices"][0]["message"]["content"]
    whole = client.chat.completions.create(**body)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (said, "length")
    assert whole.usage is not None and whole.usage.completion_tokens == body["max_tokens"]
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == body["max_tokens"]


def test_a_completion_in_one_piece_and_as_a_stream(deployment: Deployment, client: openai.OpenAI) -> None:
    body, expected = asked(deployment, "completions: logprobs")
    choice = client.completions.create(**body).choices[0]
    assert choice.text == expected["choices"][0]["text"]
    assert choice.logprobs is not None and choice.logprobs.tokens == expected["choices"][0]["logprobs"]["tokens"]
    assert choice.logprobs.text_offset == expected["choices"][0]["logprobs"]["text_offset"]
    chunks = list(client.completions.create(**body, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_the_async_client_with_many_at_once(deployment: Deployment) -> None:
    body, expected = asked(deployment, "chat: plain")
    said = expected["choices"][0]["message"]["content"]

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=deployment.router.url("/v1"), api_key="none", max_retries=0) as client:

            async def whole() -> str:
                return (await client.chat.completions.create(**body)).choices[0].message.content or ""

            async def stream() -> str:
                chunks = await client.chat.completions.create(**body, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            return await asyncio.gather(*[ask() for ask in (whole, stream) for _ in range(3)])

    assert asyncio.run(run()) == [said] * 6


def test_a_named_tool(deployment: Deployment, client: openai.OpenAI) -> None:
    body, expected = asked(deployment, "tools: named function")
    (wanted,) = expected["choices"][0]["message"]["tool_calls"]
    called = client.chat.completions.create(**body).choices[0].message.tool_calls
    assert called is not None
    assert [call.model_dump(exclude={"id"}) for call in called] == [{name: wanted[name] for name in ("type", "function")}]
    name, arguments = "", ""
    for chunk in client.chat.completions.create(**body, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.function is not None
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    assert (name, arguments) == (wanted["function"]["name"], wanted["function"]["arguments"])


class River(BaseModel):
    name: Literal["Rhine", "Danube", "Loire"]
    navigable: bool


def test_structured_output(deployment: Deployment, client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=deployment.plan.model_name,
        messages=[{"role": "user", "content": "Name a river of Europe."}],
        response_format=River,
        max_tokens=60,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, River)


def test_errors_are_the_clients_own(deployment: Deployment, client: openai.OpenAI) -> None:
    body, _ = asked(deployment, "chat: plain")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**body | {"temperature": -1})
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**body, n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**body | {"model": "another"})


def test_a_client_that_leaves_its_stream(deployment: Deployment, client: openai.OpenAI) -> None:
    body, _ = asked(deployment, "chat: plain")
    with client.chat.completions.create(**body | {"max_tokens": 500}, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert client.chat.completions.create(**body).choices[0].message.content


def test_vllms_load_generator(deployment: Deployment, tmp_path: Path) -> None:
    plan = deployment.plan
    command = [str(plan.bin / "python"), "-c", BENCH_SERVE, "--backend", "openai", "--base-url", deployment.router.url()]
    command += ["--endpoint", "/v1/completions", "--model", plan.model_name, "--tokenizer", str(plan.model)]
    command += ["--dataset-name", "random", "--random-input-len", "40", "--random-output-len", str(OUTPUT_IDS)]
    command += ["--num-prompts", str(COMPLETED), "--max-concurrency", "4", "--ignore-eos", "--disable-tqdm", "--seed", "1"]
    command += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (COMPLETED, COMPLETED * OUTPUT_IDS)
