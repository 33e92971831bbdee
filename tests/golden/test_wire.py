"""The bytes on the wire do not change by accident: every kind and every header against tests/golden/wire.json.

A change that is meant: PEGAFLOW_GOLDEN=write pytest tests/golden/test_wire.py, then read the diff of wire.json. Bytes that
changed for an old message need a new protocol number (common/wire/version.py); a new kind or trailing field does not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.wire.codec import encode_body, kinds
from pegaflow.common.wire.envelope import Envelope, encode, open_envelope
from pegaflow.common.wire.messages.operate import Ping
from pegaflow.common.wire.version import PROTOCOL
from wire_samples import HEADERS, MESSAGES

FILE = Path(__file__).with_name("wire.json")


def present() -> dict[str, object]:
    return {
        "protocol": PROTOCOL,
        "envelopes": {name: [f.hex() for f in encode(Ping(), header, b"topic")] for name, header in HEADERS.items()},
        "bodies": {message.KIND: encode_body(message).hex() for message in MESSAGES},
    }


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("PEGAFLOW_GOLDEN") == "write":
        FILE.write_text(json.dumps(present(), indent=1) + "\n", encoding="utf-8")
    loaded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def test_every_kind_has_a_sample_and_golden_bytes(golden: dict[str, Any]) -> None:
    assert sorted(message.KIND for message in MESSAGES) == kinds()
    assert sorted(golden["bodies"]) == kinds()
    assert golden["protocol"] == PROTOCOL


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_the_bytes_of_a_message(golden: dict[str, Any], message: Any) -> None:
    kind = message.KIND
    body = bytes.fromhex(golden["bodies"][kind])
    assert encode_body(message).hex() == body.hex()
    assert Envelope(b"", kind, None, body).message() == message


@pytest.mark.parametrize("name", HEADERS)
def test_the_frames_of_an_envelope(golden: dict[str, Any], name: str) -> None:
    frames = [bytes.fromhex(frame) for frame in golden["envelopes"][name]]
    assert encode(Ping(), HEADERS[name], b"topic") == frames
    envelope = open_envelope(frames, type(HEADERS[name]))
    assert (envelope.topic, envelope.kind, envelope.header) == (b"topic", "ping", HEADERS[name])
