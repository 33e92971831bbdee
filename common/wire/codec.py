"""Messages ↔ msgpack bodies.

A message is a frozen dataclass registered under its kind. Its body is one msgpack array with the fields in declared order.
A receiver ignores trailing fields it does not know and fills trailing fields it misses from their defaults, so that fields can be
added at the end without a new protocol number. Everything else that does not fit is a `WireError`, never an exception of msgpack.

What a body may make us allocate is bounded, not only how long it is: a byte of msgpack can be an empty list, here 56 bytes.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar, get_type_hints

import msgpack
from pegaflow.common.wire.columns import pack_keys, unpack_array, unpack_keys
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.key_column import KeyColumn

MAX_BODY_BYTES = 64 << 20
MAX_TEXTS = 1 << 16
"""Of one list. The longest is a step's requests, or a cluster's nodes."""
MAX_LISTS = 64
"""Lists and maps of one body, nested ones included: the row and its columns of texts, and what a later version may add."""
_MAX_MAP = 1 << 10
_SMALL_BYTES = 64 << 10
_U64 = 1 << 64

Keys = Annotated[Sequence[bytes], "keys"]
UncutKeys = Annotated[Sequence[bytes], "keys", "uncut"]
"""The same bytes; the receiver gets a `KeyColumn`."""
if TYPE_CHECKING:
    U32 = Annotated[array[int], "u32"]
    U64 = Annotated[array[int], "u64"]
else:  # array is not subscriptable before Python 3.12
    U32 = Annotated[array, "u32"]
    U64 = Annotated[array, "u64"]
Strs = Annotated[Sequence[str], "strs"]
Int = Annotated[int, "int"]  # 0 … 2**64 - 1
Signed = Annotated[int, "signed"]  # −2**63 … 2**63 − 1
Str = Annotated[str, "str"]
Bytes = Annotated[bytes, "bytes"]
Bool = Annotated[bool, "bool"]


class Message(Protocol):
    """What the codec needs of a message class."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


M = TypeVar("M", bound=type)


def _bad(what: str, value: object) -> WireError:
    return WireError(ErrorCode.BAD_MESSAGE, f"expected {what}, got {type(value).__name__}")


def _int(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _U64:
        raise _bad("an unsigned 64-bit number", value)
    return value


def _signed(value: Any) -> int:
    if type(value) is not int or not -(_U64 >> 1) <= value < _U64 >> 1:
        raise _bad("a signed 64-bit number", value)
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _bad("text", value)
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _bad("bytes", value)
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _bad("true or false", value)
    return value


def _strs(value: Any) -> list[str]:
    if type(value) is not list or any(type(item) is not str for item in value):
        raise _bad("a list of texts", value)
    return value


def _same(value: Any) -> Any:
    return value


def _tobytes(value: array[int]) -> bytes:
    return value.tobytes()


_ENCODE: dict[str, Callable[[Any], Any]] = {
    "keys": pack_keys,
    "u32": _tobytes,
    "u64": _tobytes,
    "strs": list,
    "int": _same,
    "signed": _same,
    "str": _same,
    "bytes": bytes,
    "bool": _same,
}
_DECODE: dict[str, Callable[[Any], Any]] = {
    "keys": lambda value: unpack_keys(_bytes(value)),
    "uncut": lambda value: KeyColumn(_bytes(value)),
    "u32": lambda value: unpack_array("I", _bytes(value)),
    "u64": lambda value: unpack_array("Q", _bytes(value)),
    "strs": _strs,
    "int": _int,
    "signed": _signed,
    "str": _str,
    "bytes": _bytes,
    "bool": _bool,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    cls: type
    names: tuple[str, ...]
    encoders: tuple[Callable[[Any], Any], ...]
    decoders: tuple[Callable[[Any], Any], ...]
    required: int
    check: Callable[[Any], str | None] | None


_PLANS: dict[str, _Plan] = {}


def message(cls: M) -> M:
    """Registers a frozen dataclass as a message under its `KIND`.

    An optional method `check() -> str | None` says what is wrong between fields (columns of different lengths); it runs after
    each decode.
    """
    hints = get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    tags = [hints[field.name].__metadata__ for field in fields]
    required = sum(field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING for field in fields)
    kind: str = cls.KIND  # type: ignore[attr-defined]
    if kind in _PLANS:
        raise ValueError(f"two messages of kind {kind}")
    _PLANS[kind] = _Plan(
        cls,
        tuple(field.name for field in fields),
        tuple(_ENCODE[tag[0]] for tag in tags),
        tuple(_DECODE[tag[-1]] for tag in tags),
        required,
        getattr(cls, "check", None),
    )
    return cls


def kinds() -> list[str]:
    """All registered kinds, sorted."""
    return sorted(_PLANS)


def is_known(kind: str) -> bool:
    return kind in _PLANS


def message_class(kind: str) -> type:
    """The class registered for a kind. Raises `KeyError`."""
    return _PLANS[kind].cls


# PERF: to make a packer costs more than to use it. `pack` holds the interpreter's lock from end to end, so threads may share one.
_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


def pack_row(row: Sequence[Any]) -> bytes:
    """One msgpack array."""
    return _pack(row)


def encode_body(msg: Message) -> bytes:
    """The body of a message. The caller owns the result."""
    plan = _PLANS[msg.KIND]
    return _pack([encode(getattr(msg, name)) for name, encode in zip(plan.names, plan.encoders, strict=True)])


def decode_body(kind: str, body: bytes) -> Any:
    """The message of this kind. Raises `WireError`: `unsupported`, `too_large` or `bad_message`."""
    plan = _PLANS.get(kind)
    if plan is None:
        raise WireError(ErrorCode.UNSUPPORTED, f"unknown kind {kind[:64]!r}")
    row = unpack_row(body)
    if len(row) < plan.required:
        raise WireError(ErrorCode.BAD_MESSAGE, f"{kind}: {len(row)} fields, at least {plan.required} expected")
    try:
        msg = plan.cls(*[decode(value) for decode, value in zip(plan.decoders, row, strict=False)])
    except WireError:
        raise _named(kind, plan, row) from None
    if plan.check is not None and (wrong := plan.check(msg)):
        raise WireError(ErrorCode.BAD_MESSAGE, f"{kind}: {wrong}")
    return msg


def _named(kind: str, plan: _Plan, row: list[Any]) -> WireError:
    """What is wrong with the first field that does not decode."""
    for name, decode, value in zip(plan.names, plan.decoders, row, strict=False):
        try:
            decode(value)
        except WireError as error:
            return WireError(error.code, f"{kind}.{name}: {error.text}")
    raise AssertionError("every field decodes")


class _Budget:
    """Counts the lists and maps of one body as msgpack makes them, innermost first."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_LISTS

    def __call__(self, made: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise WireError(ErrorCode.TOO_LARGE, f"more than {MAX_LISTS} lists and maps in one body")
        return made


def unpack_row(data: bytes) -> list[Any]:
    """One msgpack array. Raises `WireError` on anything else."""
    if len(data) > MAX_BODY_BYTES:
        raise WireError(ErrorCode.TOO_LARGE, f"{len(data)} bytes, at most {MAX_BODY_BYTES}")
    # PERF: the whole of a small body costs a few megabytes at worst, so that its lists need not be counted.
    hook = _Budget() if len(data) > _SMALL_BYTES else None
    try:
        row = msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_array_len=min(MAX_TEXTS, len(data)),
            max_map_len=min(_MAX_MAP, len(data)),
            list_hook=hook,
            object_hook=hook,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise WireError(ErrorCode.BAD_MESSAGE, f"not msgpack: {type(error).__name__}") from None
    if type(row) is not list:
        raise _bad("an array", row)
    return row
