"""The scheduler half with stand-ins for vLLM's objects and for the bus, for its tests."""

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine_descriptions import plain_engine
from pegaflow.common.keys import HashAlgorithm, block_hash, none_hash, prefix_hashes, tail_hash
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.options import parse_options
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.session import AttachState, IntentRef, LeaseRef, LookupAnswer, SessionId
from pegaflow.connector.work import StepWork

BLOCK = 16
ALGORITHM = HashAlgorithm.XXHASH_CBOR
NONE = none_hash(ALGORITHM, "0")
FINGERPRINT = b"F" * 16
SESSION = SessionId(1, 1)
LEASE = LeaseRef(SESSION, 77)
ENGINE = plain_engine(BLOCK)


@dataclass
class FakeRequest:
    request_id: str
    prompt_token_ids: list[int] | None
    output: int = 0
    num_computed_tokens: int = 0
    lora_request: Any = None
    cache_salt: str | None = None
    mm_features: list[Any] = field(default_factory=list)
    prompt_embeds: Any = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False
    abort_immediately: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    hash_block: int = BLOCK

    @property
    def ids(self) -> list[int]:
        return [*(self.prompt_token_ids or []), *range(9000, 9000 + self.output)]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or [])

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def block_hashes(self) -> list[bytes]:
        return list(prefix_hashes(ALGORITHM, NONE, self.ids, self.hash_block))


class FakeBlocks:
    """vLLM's pool of blocks: only who references what, and what it would find in its own cache."""

    enable_caching = True

    def __init__(self) -> None:
        self.blocks = [SimpleNamespace(block_id=i, refs=0) for i in range(100)]
        self.cached: set[bytes] = set()
        self.freed: list[int] = []

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.refs += 1

    def free_blocks(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.refs -= 1
            self.freed.append(block.block_id)

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> Any:
        return [object()] if block_hash in self.cached else None

    @property
    def num_gpu_blocks(self) -> int:
        return len(self.blocks)

    def get_num_free_blocks(self) -> int:
        return len(self.blocks) - 1 - len(self.refs())

    def refs(self) -> dict[int, int]:
        return {block.block_id: block.refs for block in self.blocks if block.refs}


class FakeBus:
    def __init__(self) -> None:
        self.current: SessionId | None = SESSION
        self.intents: list[dict[str, Any]] = []
        self.full = False
        self.lookups: list[dict[str, Any]] = []
        self.answers: list[LookupAnswer] = []
        self.calls: list[tuple[str, object]] = []

    def wait_attached(self, timeout_s: float) -> AttachState:
        return AttachState.ATTACHED

    def session(self) -> SessionId | None:
        return self.current

    def publish_intent(
        self, keys: Sequence[bytes], rows: Sequence[int], stripes: Sequence[int], requests: Sequence[str], tails: int
    ) -> IntentRef | None:
        if self.full:
            return None
        assert len(keys) == len(rows) == len(stripes) == len(requests)
        self.intents.append({"keys": keys, "rows": rows, "stripes": stripes, "requests": requests, "tails": tails})
        return IntentRef(SESSION, len(self.intents))

    def lookup(
        self, lookup: int, request_id: str, keys: Sequence[bytes], tails: Sequence[bytes], wait_s: float, expected: bool
    ) -> bool:
        if self.current is None:
            return False
        self.lookups.append({"id": lookup, "keys": keys, "tails": tails, "wait": wait_s, "expected": expected})
        return True

    def answer(self, full: int, tail: int = -1, code: str = "") -> None:
        pages = full + (tail >= 0)
        self.answers.append(
            LookupAnswer(
                self.lookups[-1]["id"],
                LEASE if pages else None,
                full,
                tail,
                array("I", range(pages)),
                array("Q", range(pages)),
                b"\0" * full + b"\1" * (tail >= 0),
                code,
            )
        )

    def cancel(self, lookup: int) -> None:
        self.calls.append(("cancel", lookup))

    def loading(self, lease: LeaseRef) -> None:
        self.calls.append(("loading", lease))

    def release(self, lease: LeaseRef) -> None:
        self.calls.append(("release", lease))

    def drain(self) -> list[LookupAnswer]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        self.calls.append(("close", None))


class Half:
    def __init__(self, engine: Engine = ENGINE, *, seed_agrees: bool = True, **options: Any) -> None:
        values = {"pd_tail_save": True, "pd_tail_load": True, **options}
        parsed = parse_options({f"pegaflow.{name}": value for name, value in values.items()}, {})
        self.bus, self.pool, self.counters = FakeBus(), FakeBlocks(), Counters()
        self.now = 0.0

        def tail(parent: bytes | None, ids: Sequence[int]) -> bytes:
            return bytes(block_hash(ALGORITHM, NONE if parent is None else type(NONE)(parent), ids))

        self.half = SchedulerHalf(
            parsed,
            engine,
            tail,
            lambda: self.now,
            self.counters,
            logging.getLogger("scheduler_script"),
            seed_agrees=lambda: seed_agrees,
        )
        self.half.bind_pool(self.pool)
        self.half.connect(self.bus, FINGERPRINT)

    def new(self, ids: int, request_id: str = "r", **fields: Any) -> FakeRequest:
        request = FakeRequest(request_id, list(range(ids)), **fields)
        self.half.new_request(request)
        return request

    def step(self, scheduled: dict[str, int] | None = None, tables: dict[str, list[int]] | None = None) -> StepWork:
        numbers = scheduled or {}
        known = tables or {}
        state = SimpleNamespace(get_block_ids=lambda name: (known[name],) if name in known else None)
        return self.half.build(SimpleNamespace(num_scheduled_tokens=numbers, kv_connector_block_state=state))


def keys(ids: int, blocks: Sequence[int], tail: bool) -> list[bytes]:
    tokens = list(range(ids))
    hashes = prefix_hashes(ALGORITHM, NONE, tokens, BLOCK)
    out = [FINGERPRINT + hashes[index] for index in blocks]
    if tail:
        end = tail_hash(ALGORITHM, NONE, tokens, BLOCK)
        assert end is not None
        out.append(FINGERPRINT + end)
    return out
