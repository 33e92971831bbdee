"""A chunk that is said by its pattern is the chunk that JSON would have given, or it is none of that pattern."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.answer import Answering
from pegaflow.services.router.decode import Way, continue_leg, relay_leg
from pegaflow.services.router.openai import Endpoint, Json, parse_request
from pegaflow.services.router.pattern import Pattern, Said
from pegaflow.services.router.prefill import read_prefill
from streamed import read

THEIRS = '{"id":"d","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":[7]}]}'
MINE = 'data: {"id":"p","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":null}]}\n\n'


def pattern(theirs: str = THEIRS, mine: str = MINE) -> Pattern | None:
    return Pattern.learn(theirs, "content", mine, "content", "a", [7])


def test_text_and_ids_may_differ_and_nothing_else() -> None:
    learnt = pattern()
    assert learnt is not None
    said = learnt.read(THEIRS.replace('"a"', r'"\u00f6 \"\n"').replace("[7]", "[8, 10]"))
    assert said == Said(r"\u00f6 \"\n", "8, 10")
    assert (said.plain, said.ids) == ('ö "\n', [8, 10])
    assert learnt.write(said) == MINE.replace('"a"', r'"\u00f6 \"\n"')


@pytest.mark.parametrize(
    "other",
    [
        THEIRS.replace('"finish_reason":null', '"finish_reason":"stop"'),
        THEIRS.replace('"finish_reason":null', '"finish_reason":"abort"'),
        THEIRS.replace('"a"', '""'),
        THEIRS.replace('"a"', "null"),
        THEIRS.replace('"a"', '"a'),
        THEIRS.replace('"a"', '"a","reasoning":"b"'),
        THEIRS.replace('"a"', '"a\n"'),
        THEIRS.replace('"a"', r'"\x"'),
        THEIRS.replace('"a"', r'"\u12"'),
        THEIRS.replace("[7]", "[]"),
        THEIRS.replace("[7]", "[07]"),
        THEIRS.replace("[7]", "[7.5]"),
        THEIRS.replace("[7]", "[7,]"),
        THEIRS.replace("[7]", "null"),
        THEIRS + " ",
        THEIRS[:-1],
        THEIRS.replace('"d"', '"e"'),
        THEIRS[:-1] + ',"error":{"message":"x"}}',
        '{"error":{"message":"x"}}',
        "[DONE]",
        "",
    ],
)
def test_another_chunk_is_read_as_json(other: str) -> None:
    learnt = pattern()
    assert learnt is not None
    assert learnt.read(other) is None


@pytest.mark.parametrize(
    "theirs",
    [
        THEIRS.replace('"logprobs":null', '"logprobs":{"content":[]}'),  # which of the two is the text?
        THEIRS.replace('"a"', '"b"'),
        THEIRS.replace("[7]", "[8]"),
        THEIRS.replace('"token_ids":[7]', '"token_ids":null'),
        '{"choices":[{"token_ids":[7],"delta":{"content":"a"}}]}',  # ids first: not how engines write
    ],
)
def test_what_is_not_plain_to_see_is_not_learnt(theirs: str) -> None:
    assert pattern(theirs) is None


texts = st.one_of(st.text(max_size=4), st.sampled_from(["a", " b", "\n", '"', "\\", "\ufffd", "ö", "😀", '"content":', ""]))
tokens: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {
        "text": texts,
        "ids": st.lists(st.integers(0, 200_000), max_size=2),
        "finish": st.just(None),
        "usage": st.none(),
        "extra": st.just({}),
    }
)

odd: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {
        "text": texts,
        "ids": st.lists(st.integers(0, 200_000), max_size=2),
        "finish": st.sampled_from([None, None, "stop"]),
        "usage": st.sampled_from([None, {"completion_tokens": 1}]),
        "extra": st.sampled_from([{}, {"logprobs": {"tokens": ["a"], "text_offset": [0]}}, {"reasoning": "hm"}]),
    }
)


def chunk(endpoint: Endpoint, said: Json, *, ids: bool) -> Json:
    choice: Json = {"index": 0}
    if endpoint is Endpoint.CHAT:
        extra = {name: value for name, value in said["extra"].items() if name == "reasoning"}
        choice["delta"] = {"content": said["text"], **extra}
    else:
        choice["text"] = said["text"]
    choice |= {"logprobs": said["extra"].get("logprobs"), "finish_reason": said["finish"]}
    choice["token_ids"] = said["ids"] if ids else None
    payload: Json = {"id": "d", "object": "x", "created": 5, "model": "m", "choices": [choice]}
    return payload if said["usage"] is None else payload | {"usage": said["usage"]}


@settings(deadline=None, max_examples=400)
@given(
    st.data(),
    st.sampled_from(Endpoint),
    st.sampled_from(Way),
    st.lists(st.one_of(tokens, tokens, tokens, odd), min_size=2, max_size=8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_an_answer_is_the_same_with_patterns_and_without(
    data: st.DataObject, endpoint: Endpoint, way: Way, said: list[Json], ids: bool, want: bool, resumes: bool, direct: bool
) -> None:
    prompt: Json = {"messages": []} if endpoint is Endpoint.CHAT else {"prompt": "x"}
    asked = prompt | {"stream": True, "max_tokens": 50, "return_token_ids": want, "stream_options": {"include_usage": True}}
    request = parse_request(endpoint, json.dumps(asked).encode())
    answer: Json = {"index": 0, "finish_reason": "length", "token_ids": [1], "prompt_token_ids": [2, 3], "text": "f"}
    answer["message"] = {"role": "assistant", "content": "f"}
    payload = {"id": "p", "created": 1, "model": "m", "choices": [answer], "prompt_token_ids": [2, 3], "usage": {}}
    prefill = None if direct else read_prefill(endpoint, payload)
    if prefill is None:
        leg = relay_leg(request)
    else:
        leg = continue_leg(request, prefill, way=way, forwarded=1, model_length=99, resumable=resumes)
    quick, slow = Answering(request, prefill, leg), Answering(request, prefill, leg)
    spoken: list[tuple[Any, Any]] = []
    escape = data.draw(st.booleans(), label="escape")
    for one in said:
        event = json.dumps(chunk(leg.endpoint, one, ids=ids), ensure_ascii=escape, separators=(",", ":"))
        made = quick.quick(event)
        ours = [made] if made is not None else quick.frame(event).chunks
        spoken.append((read(ours or []), slow.frame(event).chunks or []))
        if slow.ended:
            break
    assert [ours for ours, _ in spoken] == [theirs for _, theirs in spoken]
    assert quick.ended == slow.ended
    assert quick.resumable(greedy=True) == slow.resumable(greedy=True)
    if quick.resumable(greedy=True):
        assert quick.rewind() == slow.rewind()
    else:
        assert quick.close() == slow.close()


def test_a_token_after_another_needs_no_json() -> None:
    request = parse_request(Endpoint.COMPLETIONS, b'{"prompt": "x", "stream": true}')
    answer = Answering(request, None, relay_leg(request))
    said: Json = {"text": "a", "ids": [7], "finish": None, "usage": None, "extra": {}}
    event = json.dumps(chunk(Endpoint.COMPLETIONS, said, ids=True))
    assert answer.quick(event) is None
    answer.frame(event)
    made = answer.quick(event.replace('"a"', '"b"'))
    assert made is not None
    assert json.loads(made.removeprefix("data: ")) == chunk(Endpoint.COMPLETIONS, said | {"text": "b"}, ids=True)
