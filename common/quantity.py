"""Sizes and durations as people write them: "4GiB", "500ms"."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-zµ]*)\s*")

_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def size(text: str) -> int:
    """Bytes. Units are exact in case ("4GiB" is 2**32, "4GB" is 4 * 10**9); a plain number is bytes.

    Raises ValueError for anything else, and where the result is no whole number of bytes.
    """
    number, unit = _split(text, _BYTES, "4GiB")
    value = float(number) * _BYTES[unit]
    if "." not in number:
        return int(number) * _BYTES[unit]  # exact beyond 2**53
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(value)


def duration(text: str) -> float:
    """Seconds. Units: us, ms, s, m (or min), h; a plain number is seconds. Raises ValueError for others."""
    number, unit = _split(text, _SECONDS, "500ms")
    return float(number) * _SECONDS[unit]


def _split(text: str, units: dict[str, float] | dict[str, int], example: str) -> tuple[str, str]:
    found = _NUMBER.fullmatch(text)
    if found is None or found[2] not in units:
        names = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is not a number with one of the units {names} (example: {example})")
    return found[1], found[2]
