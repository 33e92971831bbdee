"""Error codes: the same word on the wire, in the log and as a metric label.

Two classes keep apart whose fault it was, as h11 does: `LocalError` is ours (bad argument, not attached), `RemoteError`
is what a peer answered or failed to answer. Nothing is raised across the bus; a code travels instead.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable codes. Never rename one: operators alert on them."""

    # the message itself
    BAD_ENVELOPE = "bad_envelope"
    BAD_MESSAGE = "bad_message"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    # attach
    PROTOCOL_MISMATCH = "protocol_mismatch"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    LAYOUT_MISMATCH = "layout_mismatch"
    LOCK_NOT_VISIBLE = "lock_not_visible"
    SESSION_TAKEN = "session_taken"
    BAD_MEMBER = "bad_member"
    POOL_TOO_SMALL = "pool_too_small"
    # who and when
    NOT_ATTACHED = "not_attached"
    BAD_TOKEN = "bad_token"
    FORBIDDEN = "forbidden"
    WRONG_EPOCH = "wrong_epoch"
    DEADLINE = "deadline"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    DUPLICATE_NODE = "duplicate_node"
    STALE_SYNC = "stale_sync"
    STORE_UNREACHABLE = "store_unreachable"
    # pages
    NO_SPACE = "no_space"
    KEEP_FULL = "keep_full"
    GONE = "gone"
    UNKNOWN = "unknown"
    BAD_CHECKSUM = "bad_checksum"
    LEASE_EXPIRED = "lease_expired"
    FETCH_FAILED = "fetch_failed"
    # processes
    BAD_CONFIG = "bad_config"
    BAD_ENDPOINT = "bad_endpoint"
    PLAINTEXT_NETWORK = "plaintext_network"
    UNSAFE_PATH = "unsafe_path"
    PORT_IN_USE = "port_in_use"
    POOL_BUSY = "pool_busy"
    POOL_TOO_LARGE = "pool_too_large"
    DISK_BUSY = "disk_busy"
    DISK_REFUSED = "disk_refused"
    INTERNAL = "internal"


_RETRYABLE = frozenset(
    {
        ErrorCode.DEADLINE,
        ErrorCode.UNREACHABLE,
        ErrorCode.BUSY,
        ErrorCode.NOT_READY,
        ErrorCode.DRAINING,
        ErrorCode.WRONG_EPOCH,
        ErrorCode.NOT_ATTACHED,
        ErrorCode.LOCK_NOT_VISIBLE,
        ErrorCode.SESSION_TAKEN,
        ErrorCode.NO_SPACE,
        ErrorCode.STALE_SYNC,
        ErrorCode.STORE_UNREACHABLE,
        ErrorCode.INTERNAL,
    }
)


class PegaflowError(Exception):
    """An error with a stable code, a text for people, and whether asking again can help."""

    def __init__(self, code: ErrorCode | str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = str(code)
        self.text = text

    @property
    def retryable(self) -> bool:
        return self.code in _RETRYABLE


class LocalError(PegaflowError):
    """Our own mistake: what we were about to send or start is not valid."""


class RemoteError(PegaflowError):
    """The peer's answer, or its silence."""


class WireError(RemoteError):
    """Bytes that do not decode: truncated, oversized, of an unknown kind or version, or of a wrong type."""
