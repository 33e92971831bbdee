"""Columns for people."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], tones: Sequence[Sequence[str]] = ()) -> str:
    """Left-aligned columns as wide as their longest value, without trailing blanks. `tones`: per cell a colour, or empty."""
    clean = [[printable(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *clean, strict=True)]
    lines = []
    for number, row in enumerate((head, *clean)):
        colours = tones[number - 1] if number and tones else [""] * len(row)
        padded = [value.ljust(width) for value, width in zip(row[:-1], widths[:-1], strict=True)] + list(row[-1:])
        line = "  ".join(_painted(value, colour) for value, colour in zip(padded, colours, strict=True))
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def _painted(value: str, colour: str) -> str:
    return f"\x1b[{colour}m{value}\x1b[0m" if colour else value


def printable(value: str) -> str:
    """Names and texts come from other processes: nothing of them may steer a terminal."""
    return value if value.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)


def size(count: object) -> str:
    """Bytes in the largest binary unit that leaves at least 1; `-` for what is not a number."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return "-"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f}{_UNITS[unit]}" if value == int(value) else f"{value:.1f}{_UNITS[unit]}"


def span(milliseconds: object) -> str:
    """A time in its two largest units; `-` for what is not a number."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return "-"
    seconds = int(milliseconds // 1000)
    if seconds < 60:
        return f"{milliseconds / 1000:.1f}s"
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while not parts[0][0]:
        parts.pop(0)
    return "".join(f"{value}{unit}" for value, unit in parts[:2])


def ago(milliseconds: object) -> str:
    """How long ago; `-` for what is not a number."""
    shown = span(milliseconds)
    return shown if shown == "-" else f"{shown} ago"
