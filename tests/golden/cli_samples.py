"""One listing of every list command, out of sample answers; the golden JSON of the inspection tool is made of them."""

from __future__ import annotations

from pegaflow.common.wire.messages.operate import Pong
from pegaflow.services.cli import engine, status
from pegaflow.services.cli.listing import Listing, Wrong

WRONG = Wrong("tier", "b", "tcp://h:2", "deadline", "no answer from tcp://h:2 in time")
DOCUMENT = {"state": "ready", "pages": {"sealed": 12}, "free_bytes": 1 << 29, "pool_bytes": 1 << 30, "sessions": [{}]}

LISTINGS: dict[str, Listing] = {
    "status": Listing(status.COLUMNS, [status.present("tcp://h:1", Pong("tier", "a", 7, "0.1.0", 1234), DOCUMENT)], [WRONG]),
    "engine list": Listing(
        engine.COLUMNS,
        [{"role": "decode", "url": "http://d:1", "healthy": None, "breaker": "closed", "requests": 3, "models": ["m"]}],
    ),
}
