"""One message of every kind, each field with a value of its own; the golden bytes and the tests of the codec share them."""

from __future__ import annotations

from typing import Any

from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.envelope import EventHeader, Header, PublicationHeader, ReplyHeader, RequestHeader
from pegaflow.common.wire.messages import attach, catalogue, facts, inspection, loads, operate, saves, space, transfer

BIG = (1 << 64) - 1
F, N, T = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))
K = [F + bytes([n]) * 16 for n in range(3)]
MARKS = bytes(range(24))

MESSAGES: tuple[Any, ...] = (
    attach.Attach(
        *(1, "0.1.0", "engine-1", "rank", 2, 1, 4, 0, 2, F, b"", ["model=m", "dtype=bf16"]),
        *(N, u32s([1 << 20]), "read_write", 4242, "ab" * 16, T, 17, True, ["vllm=0.32.0"]),
    ),
    attach.Attached(
        *("node-a", 3, 2, T, 17, b"s.0000000000000003", "/dev/shm/p", 1 << 32, "/dev/shm/t", 16384),
        *("ipc:///run/i", "ipc:///run/e", "ipc:///run/c"),
    ),
    attach.Detach(3, 2, T),
    attach.Sessions(),
    attach.SessionList(["engine-1"], F, u32s([16]), u32s([8]), ["sha256_cbor"], ["00ff"]),
    attach.Alive(BIG, 5, 6, u64s([7, 8]), u64s([9]), u64s([])),
    attach.SessionBeat(u32s([1, 2]), u64s([10, BIG])),
    attach.Welcome(),
    attach.Ack(2, 18),
    catalogue.Delta(K, bytes([0, 1, 2]), bytes([0, 0, 1]), u32s([0, 4096, 8192])),
    catalogue.CatalogueBeat(T, 1, 2),
    catalogue.Sync(11, 12, 3),
    catalogue.SyncChunk(11, 12, 3, 4, 99, K[:2], bytes([1, 2]), bytes([0, 0]), u32s([4096, 8192])),
    catalogue.Hello("node-a", 13, "tcp://h:1", "tcp://h:2", "tcp://h:3", "0.1.0", True, 3, 250),
    catalogue.HelloAck(True),
    catalogue.Bye("node-a", 13),
    catalogue.Locate("node-b", K, 1500, True, 1, True, 16),
    catalogue.Located(
        bytes([2, 1]), 2, u32s([0, 1, catalogue.NO_OWNER, catalogue.NO_OWNER]), ["a", "b"], u64s([1, 2]), ["r", "s"]
    ),
    catalogue.Nodes(),
    operate.NodeDrain(True),
    operate.NodeUndrain(),
    transfer.Take("a", 13, "tcp://h:1", [b"k" * 48], u32s([16384, 32768])),
    transfer.Taken(1),
    catalogue.NodeList(["a"], u64s([13]), ["up"], ["tcp://h:1"], ["tcp://h:2"], ["tcp://h:3"], u64s([5]), u64s([6])),
    catalogue.NodeUp("a", 13, "tcp://h:1"),
    catalogue.NodeDown("a", 13, "dead"),
    catalogue.Beat(),
    inspection.Inspect(K),
    inspection.Inspected(
        *(bytes([2, 1, 0]), bytes([7, 1, 0]), u64s([8192, 4096, 0]), u32s([2, 1, 0]), u32s([3, 0, 0]), u32s([2, 0, 0])),
        *(u32s([1, 0, 0]), u64s([1500, BIG, BIG]), u64s([BIG, 0, BIG]), u32s([2, 0, 0]), N + T, ["engine-1", "", ""]),
        ["req-1", "", ""],
    ),
    inspection.Find(F[:5]),
    inspection.Found([K[0].hex()], True),
    inspection.Story(K[0]),
    inspection.Told(u64s([9000, 50]), bytes([0, 5]), ["engine-1 req-1", ""], 60_000),
    inspection.Recall("req-1"),
    inspection.Recalled(
        *(["req-1"], ["engine-1"], [F.hex()], u64s([500]), u64s([20]), u32s([4]), u32s([3]), u32s([1]), u32s([0])),
        *(u32s([2]), u32s([1]), ["unknown"], [K[1].hex()], 90_000),
    ),
    inspection.Leases(),
    inspection.LeaseList(u64s([41]), ["engine-1"], [""], ["req-1"], u32s([3]), u64s([12288]), u64s([70]), u64s([BIG]), 1),
    inspection.Grants(),
    inspection.GrantList(
        *(u64s([32]), u64s([31]), ["engine-1"], ["req-1"], ["rank 0 (process 7)"], u32s([2]), u64s([8192]), u64s([40])),
        *(u64s([200]), 1),
    ),
    inspection.Namespaces(),
    inspection.NamespaceList([F.hex()], ["engine-1"], ["dtype=bf16\nmodel=m"], u64s([12]), u64s([1 << 20]), u64s([3])),
    inspection.Digest(),
    inspection.Digests(["node-a"], u64s([13]), u64s([99]), T, u64s([5]), u64s([6]), b"\1"),
    inspection.Believe("node-a", K),
    inspection.Believed(13, 99, bytes([2, 1, 0]), bytes([1, 0, 0]), u32s([8192, 4096, 0])),
    inspection.Resync("node-a"),
    loads.Lookup(3, T, 21, "req-1", K, K[:1], 5000, True),
    loads.Hits(21, 22, 1, 0, 2, u32s([1, 2, 3, 4]), u64s([5, 6, 7, BIG]), bytes([0, 1]), "unknown"),
    loads.Loading(3, T, u64s([22])),
    loads.Release(3, T, u64s([22, 23])),
    loads.Cancel(3, T, u64s([21])),
    loads.Done(),
    facts.Facts(),
    facts.Reach(["tcp://h:1", "ipc:///run/e"], 500),
    facts.Reached(["", "refused"], u32s([180, 90])),
    facts.DiskSpeed(64 << 20),
    operate.Error("busy", "later, please", True),
    operate.Ping(),
    operate.Pong("tier", "node-a", 13, "0.1.0", 60_000),
    operate.Status(),
    operate.Dump(),
    operate.Document("tier", "node-a", 13, '{"state":"ready"}'),
    operate.Drain(),
    operate.LogLevel("debug"),
    operate.EngineAdd("decode", "http://d:8200"),
    operate.EngineRemove("prefill", "http://p:8100"),
    saves.Intent(13, 31, K, u32s([16, 16, 5]), bytes([0, 1, 0]), ["req-1", "req-2"], u32s([0, 0, 1]), 1),
    saves.Grant(
        31, 32, F[:8], bytes([0, 1, 0]), 2, u32s([0, 2]), u32s([1, 2, 3, 4]), u64s([5, 6, 7, 8]), MARKS[:16], bytes([0, 1])
    ),
    saves.Written(13, 3, 32, u32s([1, 2, 3]), u64s([5, 6, 7]), MARKS),
    saves.Abandoned(13, 3, 32, u32s([4]), u64s([8]), MARKS[:8]),
    saves.IntentSeen(3, 31, K, bytes([0, 1, 2]), ["req-1"]),
    space.Probe(K),
    space.Probed(bytes([0, 1, 2]), bytes(3)),
    space.Keep(K, 60_000),
    space.Kept(bytes([1, 0, 1]), 1 << 20),
    space.Unkeep(K[:2]),
    transfer.Pin("node-b", K, 2, 4000),
    transfer.Pinned(41, u32s([0]), u32s([16]), u64s([0, 16384]), u32s([100, 200]), N + T, "agent", b"\0blob", BIG, 1 << 32),
    transfer.Unpin(41),
)

HEADERS: dict[str, Header] = {
    "request": RequestHeader(7, 1500, BIG),
    "reply": ReplyHeader(7, 13),
    "publication": PublicationHeader(3, 2, 17, T),
    "event": EventHeader("node-a", 13, 99),
}
