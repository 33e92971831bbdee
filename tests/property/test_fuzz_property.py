"""Envelopes of every kind, spoiled in every way: nothing raises anything but `WireError`, and no core's invariant breaks.

What decodes goes into a tier and a metaserver that hold pages, sessions, leases and waits: as a stranger's request, as one under
a session's own token, as a publication, as an event, as the answer to what they asked.
PEGAFLOW_FUZZ sets how many per kind (10,000: an hour).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import CORPUS, SAMPLES, bodies
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from metaserver_script import A1
from metaserver_script import Script as MetaScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.codec import decode_body, encode_body, kinds
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import EventHeader, PublicationHeader, ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.messages.attach import Detach
from pegaflow.common.wire.messages.catalogue import PENDING, SEALED, Located, SyncChunk
from pegaflow.common.wire.messages.transfer import Pinned
from pegaflow.services.metaserver import commands as meta_commands
from pegaflow.services.metaserver import events as meta_events
from pegaflow.services.tier import commands, events
from tier_script import EPOCH, Script, key, located

EXAMPLES = int(os.environ.get("PEGAFLOW_FUZZ", "25"))
pytestmark = pytest.mark.timeout(120 + EXAMPLES // 5)
HEADERS = (RequestHeader(1, 1000, 0), ReplyHeader(1, EPOCH), PublicationHeader(1, 1, 1, b"t" * 16), EventHeader("a", EPOCH, 1))


def decoded(kind: str, body: bytes) -> Any:
    """The message; None: refused, with a code that is meant for it."""
    try:
        return decode_body(kind, body)
    except WireError as error:
        assert error.code in (ErrorCode.BAD_MESSAGE, ErrorCode.TOO_LARGE)
        assert len(error.text) < 500, "what is wrong is told, not repeated"
        return None


def sendable(out: Iterable[Any]) -> None:
    """Whatever is said to others in answer is well-formed itself."""
    for command in out:
        message = getattr(command, "message", None)
        if message is not None and not isinstance(command, commands.Fail):
            body = encode_body(message)
            assert encode_body(decode_body(message.KIND, body)) == body


def meant(message: Any, told: dict[str, Any]) -> Any:
    """The message with what only an insider knows put into the fields that ask for it."""
    names = {field.name for field in dataclasses.fields(message)}
    return dataclasses.replace(message, **{name: value for name, value in told.items() if name in names})


def into_tier(message: Any, inside: bool) -> None:
    script = Script(pages=16, metaserver=True).engine()
    script.save([1, 2])
    script.intent([3])  # granted and never written
    script.lookup([1, 2])  # a lease
    script.lookup([1, 9], expected=True)  # a wait, which asks a metaserver
    locates = [command for command in script.last if isinstance(command, commands.Locate)]
    scheduler, rank = script.members["p", "scheduler", 0], script.members["p", "rank", 0]
    me = rank if message.KIND in ("written", "abandoned") else scheduler
    if inside:
        told = {"session": me.session, "member": me.member, "token": me.token, "epoch": EPOCH}
        if getattr(message, "keys", None):
            told["keys"] = [key(n) for n in range(len(message.keys))]
        if isinstance(message, Located):
            told["states"] = bytes([SEALED]) * len(message.states)
        if isinstance(message, Pinned):
            told |= {"agent": f"b/{5:016x}", "lengths": u32s([GRANULE] * len(message.lengths))}
        message = meant(message, told)
        if getattr(message, "check", lambda: None)():
            return
    sendable(script.feed(events.Asked("stranger", message)))
    for locate in locates:
        if isinstance(message, Located):
            sendable(script.feed(events.LocateAnswer(locate.ask, message)))
    if isinstance(message, Pinned):
        for locate in locates:
            out = script.feed(located(locate, ["b"]))
            for pin in [command for command in out if isinstance(command, commands.PinAt)]:
                out = script.feed(events.PinAnswer(pin.fetch, message, script.now))
                sendable(out)
                for read in [command for command in out if isinstance(command, commands.Read)]:
                    assert len(read.local) == len(read.remote) == len(read.lengths), "each byte that lands has its place"
    if not isinstance(message, Detach):
        for who in (me, rank):
            number = script.seqs[who.session, who.member]
            sendable(script.feed(events.Published(who.session, who.member, number, who.token, message)))
            sendable(script.feed(events.Published(who.session, who.member, number, b"x" * 16, message)))
    script.now += 0.5
    sendable(script.feed(events.Tick()))
    script.now += 60
    sendable(script.feed(events.Tick()))


def into_metaserver(message: Any, inside: bool) -> None:
    script = MetaScript()
    held = {key(1): SEALED, key(2): PENDING}
    script.up("a", A1, held)
    script.locate([key(2)], asker="b")
    script.hello("b", 0xB1)
    asks = [c for c in script.feed(meta_events.Heard("b", 0xB1, 0, SAMPLES["welcome"])) if isinstance(c, meta_commands.AskChunk)]
    if inside:
        told: dict[str, Any] = {"node": "a", "epoch": A1}
        if getattr(message, "keys", None):
            told["keys"] = [key(n) for n in range(len(message.keys))]
        message = meant(message, told)
    sendable(script.feed(meta_events.Asked("stranger", message)))
    if isinstance(message, SyncChunk):
        for ask in asks:
            sync = ask.sync
            for chunk in (message, dataclasses.replace(message, clone_epoch=sync.clone_epoch, sync_id=sync.sync_id, chunk=0)):
                sendable(script.feed(meta_events.ChunkAnswer("b", sync.sync_id, chunk)))
    for node, epoch in (("a", A1), ("b", 0xB1), ("b", 1), ("nobody", 5)):
        sendable(script.feed(meta_events.Heard(node, epoch, 1, message)))
    sendable(script.feed(meta_events.Tick(), 0.5))
    sendable(script.feed(meta_events.Tick(), 60.0))
    script.feed(meta_events.Work())


def into_all(kind: str, body: bytes, inside: bool) -> None:
    message = decoded(kind, body)
    if message is not None:
        into_tier(message, inside)
        into_metaserver(message, inside)


@pytest.mark.parametrize("kind", kinds())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), inside=st.booleans())
def test_no_body_of_any_kind_breaks_a_core(kind: str, data: st.DataObject, inside: bool) -> None:
    body = data.draw(bodies(kind))
    note(f"keep this case as tests/corpus/{kind}-WHAT.hex: {body.hex()}")
    into_all(kind, body, inside)


@pytest.mark.parametrize("case", sorted(CORPUS.glob("*.hex")), ids=lambda case: case.stem)
def test_what_once_did_harm_does_none(case: Path) -> None:
    kind = case.stem.partition("-")[0]
    for inside in (False, True):
        into_all(kind, bytes.fromhex(case.read_text().strip()), inside)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(HEADERS), st.sampled_from(sorted(SAMPLES)), st.data())
def test_no_envelope_raises_anything_but_a_wire_error(header: Any, kind: str, data: st.DataObject) -> None:
    frames = encode(SAMPLES[kind], header)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frames) - 1))
        match data.draw(st.sampled_from(("change", "drop", "double", "put"))):
            case "change":
                frame = bytearray(frames[at])
                if frame:
                    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
                frames[at] = bytes(frame)
            case "drop":
                frames = frames[:at] + frames[at + 1 :] or [b""]
            case "double":
                frames = frames[:at] + frames[at : at + 1] * 2 + frames[at + 1 :]
            case "put":
                frames = [*frames[:at], data.draw(st.binary(max_size=20)), *frames[at:]]
    try:
        envelope = open_envelope(frames, type(header))
        envelope.message()
    except WireError as error:
        assert error.code in (
            ErrorCode.BAD_ENVELOPE,
            ErrorCode.BAD_MESSAGE,
            ErrorCode.PROTOCOL_MISMATCH,
            ErrorCode.UNSUPPORTED,
            ErrorCode.TOO_LARGE,
        )
