"""Requests of tests/parity, asked of one vLLM and of the router, in a form in which two answers can be compared.

    {"about", "path", "base": a body, "cases": [{"name", "with": {…}, "without": […], "stream": [false, true]}]}

In a body "$ids:40" is a prompt of 40 ids; "$t1" the text of the first token that the base body is answered with, "$t1-end" its
last character, "$t1|t2" the last character of the first and the first of the second, "$t1+qq" the first and what never follows
it; "$id3" the id of the third token. May differ between two answers: ids, times, how many tokens one event of a stream carries.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from deployment.http import Json
from deployment.ports import HOST

FOLDER: Final = Path(__file__).resolve().parents[1] / "parity"
_TEXT_PLACE: Final = re.compile(r"\$t(\d)(-end|\|t(\d)|\+qq)?$")
_CLOSE: Final = 2e-3
"""How far a log probability may be off: the decode engine computes a position in another batch than one engine alone."""

_SAID_ONCE: Final = ("role", "finish_reason", "type", "object", "model", "system_fingerprint")


class Case(NamedTuple):
    """One request; places in its body are not filled in yet."""

    name: str
    path: str
    base: Json
    body: Json


class Reply(NamedTuple):
    """`body`: parsed; of a stream: its folded events, and whether `[DONE]` was last."""

    status: int
    content_type: str
    body: Any
    faults: list[str]


def cases() -> Iterator[Case]:
    for file in sorted(FOLDER.glob("*.json")):
        listed = json.loads(file.read_text())
        for case in listed["cases"]:
            gone = case.get("without", ())
            body = {name: value for name, value in (listed["base"] | case.get("with", {})).items() if name not in gone}
            for stream in case.get("stream", (False, True)):
                name = f"{file.stem}: {case['name']}{', stream' if stream else ''}"
                yield Case(name, listed["path"], listed["base"], body | ({"stream": True} if stream else {}))


class Places:
    """Fills bodies in. `first_ids(path, body)`: how one vLLM begins its answer."""

    def __init__(self, tokenizer: Path, prompt: Callable[[int], list[int]], first_ids: Callable[[str, Json], list[int]]) -> None:
        self._tokenizer, self._prompt, self._first_ids = Tokenizer.from_file(str(tokenizer)), prompt, first_ids
        self._begun: dict[str, list[int]] = {}

    def filled(self, case: Case) -> Json:
        body: Json = self._fill(case.body, case)
        return body

    def _fill(self, value: Any, case: Case) -> Any:
        if isinstance(value, dict):
            return {name: self._fill(part, case) for name, part in value.items()}
        if isinstance(value, list):
            return [self._fill(part, case) for part in value]
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if value.startswith("$ids:"):
            return self._prompt(int(value[5:]))
        if value.startswith("$id"):
            return self._begin(case)[int(value[3:]) - 1]
        place = _TEXT_PLACE.match(value)
        assert place is not None, value
        text = self._text(case, int(place[1]))
        match place[2]:
            case None:
                return text
            case "-end":
                return text[-1]
            case "+qq":
                return text + "qq"
            case _:
                return text[-1] + self._text(case, int(place[3]))[0]

    def _text(self, case: Case, number: int) -> str:
        return str(self._tokenizer.decode([self._begin(case)[number - 1]], skip_special_tokens=False))

    def _begin(self, case: Case) -> list[int]:
        key = json.dumps([case.path, case.base])
        if key not in self._begun:
            self._begun[key] = self._first_ids(case.path, case.base)
        return self._begun[key]


def ask(port: int, path: str, body: Json) -> Reply:
    """One request over a connection of its own."""
    connection = HTTPConnection(HOST, port, timeout=180)
    with closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            # How many fields a body had is part of what vLLM says is wrong with it, and the router adds two.
            text = re.sub(r"<dict of \d+ items>", "<dict>", raw.decode())
            return Reply(response.status, kind, _whole(json.loads(text)), [])
        return Reply(response.status, kind, *_folded(raw.decode()))


def _whole(body: Json) -> Json:
    for name in ("id", "created"):
        body.pop(name, None)
    _hide_fingerprint(body)
    for choice in body.get("choices", ()):
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return body


def _hide_fingerprint(body: Json) -> None:
    """It names an engine's configuration, which differs between a prefill engine, a decode engine and one alone."""
    if body.get("system_fingerprint"):
        body["system_fingerprint"] = "some"


def _folded(text: str) -> tuple[Any, list[str]]:
    """A stream as one answer and its usage, and what no stream may do."""
    frames = [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]
    faults = [] if frames and frames[-1] == "[DONE]" else ["[DONE] is not last"]
    events: list[Json] = [json.loads(frame) for frame in frames if frame != "[DONE]"]
    faults += ["the identity changes"] * (
        len({(e.get("id"), e.get("created"), e.get("model"), e.get("object")) for e in events}) > 1
    )
    answer: Json = {}
    usages: list[Json] = []
    for at, event in enumerate(events):
        choices = event.get("choices", [])
        if event.get("usage"):
            usages.append(event["usage"])
        if not choices:
            faults += ["an event without a choice is not last"] * (at != len(events) - 1)
            continue
        [choice] = choices
        faults += ["something follows the finish reason"] * bool(answer.get("finish_reason"))
        faults += ["the role does not come first"] * ("role" in (choice.get("delta") or {}) and at > 0)
        _fold(answer, choice)
    heads: Json = {}
    for event in events:
        _hide_fingerprint(event)
        _fold(heads, {name: value for name, value in event.items() if name not in ("id", "created", "choices", "usage")})
    totals = usages[-1:]
    return {"answer": answer, "head": heads, "usage": totals, "usage everywhere": len(usages) == len(events)}, faults


def _fold(into: Json, part: Json) -> None:
    """Adds one event's choice: texts and lists are joined, the rest is what was said last."""
    for name, value in part.items():
        old = into.get(name)
        if isinstance(value, dict):
            into[name] = old if isinstance(old, dict) else {}
            _fold(into[name], value)
        elif name == "tool_calls" and isinstance(value, list):
            calls = into.setdefault(name, {})
            for call in value:
                call.pop("id", None)
                _fold(calls.setdefault(str(call.get("index")), {}), call)
        elif isinstance(value, list | str) and type(value) is type(old) and name not in _SAID_ONCE:
            into[name] += value
        elif value is not None or name not in into:
            into[name] = value


def differences(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Where two replies' bodies differ; numbers may be a little off."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            if name not in one or name not in other:
                yield f"{at}.{name}: {'missing' if name in one else 'unasked'}: {one.get(name, other.get(name))!r}"
            else:
                yield from differences(one[name], other[name], f"{at}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (mine, yours) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, yours, f"{at}[{i}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE):
            yield f"{at}: {one} and {other}"
    elif one != other:
        yield f"{at}: {one!r} and {other!r}"
