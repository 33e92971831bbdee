"""One listing of every list command, out of sample answers; the golden JSON of the inspection tool is made of them."""

from __future__ import annotations

from pegaflow.common.wire.messages.operate import Pong
from pegaflow.services.cli import bench, check, configuration, engine, node, nodes, ping, status, top
from pegaflow.services.cli.cluster import Peer
from pegaflow.services.cli.doctor import command as doctor
from pegaflow.services.cli.doctor import fingerprints
from pegaflow.services.cli.doctor.finding import error
from pegaflow.services.cli.doctor.patient import Engine
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.thresholds import Measure, State

WRONG = Wrong("tier", "b", "tcp://h:2", "deadline", "no answer from tcp://h:2 in time")
DOCUMENT = {"state": "ready", "pages": {"sealed": 12}, "free_bytes": 1 << 29, "pool_bytes": 1 << 30, "sessions": [{}]}
COUNTS = {"lookups": 1, "lookup_us": 1500, "asked_pages": 10, "hit_pages": 9, "hit_remote": 2, "hit_disk": 1}
BEFORE, AFTER = top.Sample({}, 7, 1.0, 0.1), top.Sample(DOCUMENT | {"counts": COUNTS | {"sealed_bytes": 4096}}, 7, 3.0, 0.25)
PEER = Peer("tier", "a", "tcp://h:1", 7, "up", "tcp://h:3")
CHECKED = Listing(check.COLUMNS, [check.row(Measure("tier", "a", None, State.CRITICAL, "deadline: late"), "ms", 100.0, 1000.0)])

LISTINGS: dict[str, Listing] = {
    "status": Listing(status.COLUMNS, [status.present("tcp://h:1", Pong("tier", "a", 7, "0.1.0", 1234), DOCUMENT)], [WRONG]),
    "engine list": Listing(
        engine.COLUMNS,
        [{"role": "decode", "url": "http://d:1", "healthy": None, "breaker": "closed", "requests": 3, "models": ["m"]}],
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
        [{"service": "tier", "name": "pool_size", "value": 1 << 30, "source": "default", "reloadable": False}],
    ),
}
