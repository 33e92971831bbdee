"""One listing of every list command, out of sample answers; the golden JSON of the inspection tool is made of them."""

from __future__ import annotations

import json
from typing import Any

from pegaflow.common.wire.envelope import EventHeader, encode, open_envelope
from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.catalogue import Delta, NodeList
from pegaflow.common.wire.messages.operate import Document, Pong
from pegaflow.services.cli import (
    bench,
    catalogue,
    check,
    configuration,
    dump,
    engine,
    intents,
    leases,
    monitor,
    node,
    nodes,
    page,
    ping,
    send,
    sessions,
    status,
    top,
    why,
)
from pegaflow.services.cli.cluster import Peer
from pegaflow.services.cli.doctor import command as doctor
from pegaflow.services.cli.doctor import fingerprints
from pegaflow.services.cli.doctor.finding import error
from pegaflow.services.cli.doctor.patient import Engine
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.namespaces import Namespace, merged
from pegaflow.services.cli.prompt import Block
from pegaflow.services.cli.sight import Past, moments, seen
from pegaflow.services.cli.tap import Tapped
from pegaflow.services.cli.thresholds import Measure, State
from wire_samples import MESSAGES, F, K

WRONG = Wrong("tier", "b", "tcp://h:2", "deadline", "no answer from tcp://h:2 in time")
DOCUMENT = {"state": "ready", "pages": {"sealed": 12}, "free_bytes": 1 << 29, "pool_bytes": 1 << 30, "sessions": [{}]}
COUNTS = {"lookups": 1, "lookup_us": 1500, "asked_pages": 10, "hit_pages": 9, "hit_remote": 2, "hit_disk": 1}
BEFORE, AFTER = top.Sample({}, 7, 1.0, 0.1), top.Sample(DOCUMENT | {"counts": COUNTS | {"sealed_bytes": 4096}}, 7, 3.0, 0.25)
PEER = Peer("tier", "a", "tcp://h:1", 7, "up", "tcp://h:3")
STATUS = status.present("tcp://h:1", Pong("tier", "a", 7, "0.1.0", 1234), DOCUMENT) | {
    "last_life": {"reason": "replaced", "ago_ms": 4000}
}
CHECKED = Listing(check.COLUMNS, [check.row(Measure("tier", "a", None, State.CRITICAL, "deadline: late"), "ms", 100.0, 1000.0)])

SESSION = {
    "session": "0000000000000003",
    "engine": "engine-1",
    "fingerprint": F.hex(),
    "stale": False,
    "complete": True,
    "leases": 1,
    "lookups": 0,
    "members": [{"role": "rank", "rank": 0, "pid": 7, "next": 4, "grants": 2, "silent_ms": 300}],
}


def answer(kind: type[Any]) -> Any:
    """The sample of this kind."""
    return next(message for message in MESSAGES if isinstance(message, kind))


COPIES = seen("a", answer(inspection.Inspected))
PAST = Past(moments("a", answer(inspection.Told)), {"a": 60_000})
NAMESPACES = merged([("a", answer(inspection.NamespaceList))])
BLOCKS = [Block(0, 0, 16, False, K[0]), Block(1, 16, 20, True, K[2])]
SHORT = catalogue.Short(7, 50, "aa" * 16, 3, 1, False)

LISTINGS: dict[str, Listing] = {
    "status": Listing(status.COLUMNS, [STATUS], [WRONG]),
    "page show": page.shown(K[0], COPIES[:1], PAST),
    "page find": page.located({F: BLOCKS}, {K[0]: COPIES[:1], K[2]: []}, NAMESPACES),
    "why": Listing(
        why.COLUMNS,
        [
            {**why.remembered("a", answer(inspection.Recalled))[0], "cause": "evicted", "because": "evicted from memory on a"},
            {**why.prefix_row(F, Namespace(F), BLOCKS, 1), "cause": "never_saved", "because": "never saved"},
        ],
    ),
    "sessions": sessions.present([("a", [SESSION])], NAMESPACES),
    "leases": Listing(leases.COLUMNS, leases.rows_of("a", answer(inspection.LeaseList))),
    "intents": Listing(intents.COLUMNS, intents.rows_of("a", answer(inspection.GrantList))),
    "catalogue digest": Listing(catalogue.DIGESTS, catalogue.compared({"a": SHORT}, [("m", {"a": SHORT})])),
    "catalogue diff": Listing(
        catalogue.DIFFERENCES, catalogue.differences("a", "m", {K[0]: (2, 1, 8192)}, {K[0]: (2, 0, 8192)}), [WRONG]
    ),
    "engine list": Listing(
        engine.COLUMNS,
        [
            {
                "role": "decode",
                "url": "http://d:1",
                "healthy": None,
                "breaker": "closed",
                "requests": 3,
                "leaving": False,
                "models": ["m"],
                "why": "",
            }
        ],
    ),
    "nodes": Listing(nodes.COLUMNS, [nodes.row(PEER, DOCUMENT | {"control": "tcp://h:3", "package": "0.1.0"})], [WRONG]),
    "doctor": Listing(doctor.COLUMNS, [doctor.row(error("no_curve", "tier a", "requests tcp://h:1", "give it keys"))]),
    "fingerprints": Listing(fingerprints.COLUMNS, fingerprints.rows([Engine("e", "a", "ab" * 16, {"dtype": "bf16"}, {})])),
    "ping": Listing(ping.COLUMNS, [ping.row(PEER, [0.001, 0.002, 0.004], None)]),
    "bench": Listing(bench.COLUMNS, [ping.row(PEER, [0.001, 0.002, 0.004], None, 0.5)]),
    "top": Listing(top.COLUMNS, [top.row(PEER, BEFORE, AFTER)]),
    "node show": Listing(node.COLUMNS, [{"name": name, "value": value} for name, value in node.flat(DOCUMENT)]),
    **{f"check {verb}": CHECKED for verb in check.KINDS},
    "config show": Listing(
        configuration.COLUMNS,
        [configuration.row("tier", {"name": "pool_size", "value": 1 << 30, "source": "default", "reloadable": False}, "a")],
    ),
}


def tapped(lost: int = 0, wrong: str = "") -> Tapped:
    """A message as the monitor has it from the wire."""
    message = answer(Delta)
    envelope = open_envelope(encode(message, EventHeader("a", 7, 3), b"c"), EventHeader)
    return Tapped("tcp://h:2", envelope, envelope.header, None if wrong else message, wrong, lost)


def dumped(service: str) -> dict[str, Any]:
    told = Document(service, "a", 7, json.dumps(DOCUMENT))
    return dump.service("tcp://h:1", told, {"status": told, "dump": None, "facts": Document(service, "a", 7, "no JSON")})


OTHERS: dict[str, list[dict[str, Any]]] = {
    "monitor": [
        monitor.as_row(tapped(), raw=False, now=1.5),
        monitor.as_row(tapped(lost=2, wrong="unsupported: what"), raw=False, now=1.5),
        monitor.as_row(tapped(), raw=True, now=1.5),
    ],
    "send": [send.as_row(Pong("tier", "a", 7, "0.1.0", 1234))],
    "dump": [
        dump.document([dumped("tier"), dumped("metaserver") | {"nodes": dump.nodes_of(answer(NodeList))}], [WRONG], 0.0, "0.1.0"),
    ],
}
"""JSON that is not a listing: lines, or the one object, of each command."""
