"""What of a client's headers reaches an engine."""

from __future__ import annotations

import pytest
from pegaflow.services.router.client_headers import forwarded, request_id

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Pairs = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([b"abc-1._:Z"], True),
        ([b"a" * 128], True),
        ([], False),
        ([b""], False),
        ([b"a" * 129], False),
        ([b"a", b"a"], False),
        ([b"a b"], False),
        ([b"a\r\nX-Evil: 1"], False),
        ([b"a\n"], False),
        ([b"\xc3\xa4"], False),
        ([b'a"b'], False),
    ],
)
def test_a_request_id_is_the_clients_or_a_fresh_one(sent: list[bytes], kept: bool) -> None:
    headers = [(b"x-request-id", value) for value in sent]
    assert request_id(headers, lambda: "fresh") == (sent[0].decode() if kept else "fresh")


def test_only_what_is_on_the_list_passes() -> None:
    headers: Pairs = [
        (b"authorization", b"Bearer k"),
        (b"x-session-id", b"s"),
        (b"x-vllm-priority", b"3"),
        (b"x-request-id", b"theirs"),
        (b"traceparent", PARENT.encode()),
        (b"tracestate", b"a=1"),
        (b"tracestate", b"b=2"),
    ]
    steering = (
        b"x-data-parallel-rank x-prefiller-host-port x-prefill-host-port x-decoder-host-port x-forwarded-for "
        b"x-forwarded-host forwarded x-gateway-destination-endpoint x-pegaflow-plan x-worker-id host cookie content-length"
    ).split()
    hops = b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
    passed = forwarded(headers + [(name, b"x") for name in steering + hops], "id", None)
    assert passed == {
        "authorization": "Bearer k",
        "x-session-id": "s",
        "x-vllm-priority": "3",
        "x-request-id": "id",
        "traceparent": PARENT,
        "tracestate": "a=1,b=2",
    }


def test_the_clients_key_is_replaced_or_removed() -> None:
    headers: Pairs = [(b"authorization", b"Bearer client")]
    assert forwarded(headers, "i", None)["authorization"] == "Bearer client"
    assert forwarded(headers, "i", "Bearer engine")["authorization"] == "Bearer engine"
    assert "authorization" not in forwarded(headers, "i", "")
    assert forwarded([], "i", "Bearer engine")["authorization"] == "Bearer engine"


def test_what_the_client_calls_hop_by_hop_stays_here() -> None:
    headers: Pairs = [(b"connection", b"close, X-Session-Id"), (b"connection", b"traceparent"), (b"x-session-id", b"s")]
    headers += [(b"traceparent", PARENT.encode()), (b"x-vllm-priority", b"1")]
    assert forwarded(headers, "i", None) == {"x-vllm-priority": "1", "x-request-id": "i"}


@pytest.mark.parametrize("values", [[b"1", b"2"], [b"\xff"], [b"a\rb"], [b"a\x00"]])
def test_a_header_that_comes_twice_or_is_not_plain_is_dropped(values: list[bytes]) -> None:
    assert forwarded([(b"x-session-id", value) for value in values], "i", None) == {"x-request-id": "i"}


@pytest.mark.parametrize(
    ("parent", "valid"),
    [
        (PARENT, True),
        ("cc" + PARENT[2:], True),
        ("cc" + PARENT[2:] + "-more", True),
        (PARENT + "-more", False),
        ("ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        ("00-" + "0" * 32 + PARENT[35:], False),
        (PARENT[:36] + "0" * 16 + PARENT[52:], False),
        (PARENT[:-1], False),
        ("", False),
        ("x", False),
    ],
)
def test_a_trace_is_passed_on_whole_or_not_at_all(parent: str, valid: bool) -> None:
    passed = forwarded([(b"traceparent", parent.encode()), (b"tracestate", b"a=1")], "i", None)
    assert passed == ({"traceparent": parent, "tracestate": "a=1"} if valid else {}) | {"x-request-id": "i"}


def test_a_trace_of_two_parents_has_none() -> None:
    assert forwarded([(b"traceparent", PARENT.encode())] * 2, "i", None) == {"x-request-id": "i"}


def test_a_state_that_is_too_long_is_dropped_alone() -> None:
    passed = forwarded([(b"traceparent", PARENT.encode()), (b"tracestate", b"a" * 513)], "i", None)
    assert passed == {"traceparent": PARENT, "x-request-id": "i"}
