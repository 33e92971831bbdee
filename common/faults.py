"""Faults for tests: a process stops, dies, fails or slows down at a named point (docs/protocol.md 8). Never in production.

    PEGAFLOW_FAULT=tier.grant.after_table:kill         when the point is reached for the first time
                   tier.grant.after_table@3:stop       the third time
                   tier.hits.before_sent@*:delay=0.2   every time (delay and raise only); several faults: comma-separated
                   *:note                              nothing but a mark for every point that is reached
                   @/run/faults                        that text stands in a file, which is read again whenever it changes
    PEGAFLOW_FAULT_SEEN=/run/seen                      marks, one line per fault that happened, written before it happens

A fault happens once per marks file, so that a process which is started again does not die of it for ever; without the file, once
per process. The points are in `common/fault_points.py`.
"""

from __future__ import annotations

import difflib
import fcntl
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pegaflow.common.fault_points import BY_NAME, Point
from pegaflow.common.wire.errors import ErrorCode, LocalError

VARIABLE: Final = "PEGAFLOW_FAULT"
SEEN_VARIABLE: Final = "PEGAFLOW_FAULT_SEEN"
ANY: Final = "*"

T = TypeVar("T")
Around = tuple[Point | None, Point | None]
"""The point before a step, and the one after it."""
NOWHERE: Final[Around] = (None, None)

log = logging.getLogger(__name__)  # the connector runs under vLLM's logging, so a line of text and no fields


class Action(StrEnum):
    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    DELAY = "delay"
    NOTE = "note"


class FaultRaised(Exception):
    """What `raise` raises: an error that nobody foresaw."""


class Fault(NamedTuple):
    """`point` is ANY for `note`; `visit` 0: every one; `seconds` of a delay."""

    text: str
    point: str
    visit: int
    action: Action
    seconds: float


def parse(text: str) -> tuple[Fault, ...]:
    """Comma-separated faults. Raises `LocalError` with `bad_config`, naming what is nearest."""
    return tuple(_parse_one(part.strip()) for part in text.replace("\n", ",").split(",") if part.strip())


def _parse_one(text: str) -> Fault:
    place, colon, what = text.partition(":")
    name, at, visit = place.partition("@")
    word, equals, seconds = what.partition("=")
    if not colon:
        raise _bad(text, f"it is POINT[@VISIT]:ACTION, the action one of {', '.join(Action)}")
    if name != ANY and name not in BY_NAME:
        raise _bad(text, f"there is no point {name!r}; the nearest is {_nearest(name, BY_NAME)}")
    if word not in tuple(Action):
        raise _bad(text, f"there is no action {word!r}; the nearest is {_nearest(word, tuple(Action))}")
    action = Action(word)
    if (name == ANY) != (action is Action.NOTE):
        raise _bad(text, "note goes with *, and every other action with one point")
    if at and visit != ANY and not (visit.isdecimal() and int(visit) > 0):
        raise _bad(text, f"a visit is a number from 1, or {ANY} for every one, not {visit!r}")
    if visit == ANY and action not in (Action.DELAY, Action.RAISE):
        raise _bad(text, f"{action} happens once: name the visit")
    pause = 0.0
    if (action is Action.DELAY) != bool(equals):
        raise _bad(text, "delay, and nothing else, takes seconds: delay=0.5")
    if action is Action.DELAY:
        try:
            pause = float(seconds)
        except ValueError:
            pause = -1.0
        if not 0 < pause < 3600:
            raise _bad(text, f"{seconds!r} is no number of seconds")
    return Fault(text, name, 0 if visit == ANY or action is Action.NOTE else int(visit or 1), action, pause)


def _bad(text: str, why: str) -> LocalError:
    return LocalError(ErrorCode.BAD_CONFIG, f"{VARIABLE}: {text!r}: {why}")


def _nearest(word: str, known: Mapping[str, Point] | tuple[Action, ...]) -> str:
    return difflib.get_close_matches(word, [str(one) for one in known], n=1, cutoff=0.0)[0]


class _Armed:
    """The faults of this process. Points are reached from any thread."""

    def __init__(self, text: str, seen: str) -> None:
        self._file = Path(text[1:]) if text.startswith("@") else None
        self._seen = Path(seen) if seen else None
        self._lock = threading.Lock()
        self._visits: Counter[str] = Counter()
        self._done: set[str] = set()
        self._stamp: tuple[int, int, int] | None = None
        self._faults: tuple[Fault, ...] = ()
        if self._file is None:
            self._faults = parse(text)
        else:
            try:
                self._read_again()
            except OSError as error:
                raise LocalError(ErrorCode.BAD_CONFIG, f"{VARIABLE}: {self._file}: {error.strerror}") from None

    def _read_again(self) -> None:
        assert self._file is not None
        status = self._file.stat()
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self._faults = parse(self._file.read_text(encoding="utf-8"))
        self._visits.clear()
        self._done.clear()

    def reach(self, point: Point) -> None:
        with self._lock:
            if self._file is not None:
                try:
                    self._read_again()
                except (OSError, LocalError) as error:
                    log.error("fault_file_unusable: %s", error)
            self._visits[point] += 1
            visit = self._visits[point]
            here = [one for one in self._faults if one.point in (point, ANY) and one.visit in (0, visit)]
            due = [one for one in here if self._first(one, point)]
        for fault in due:
            self._happen(fault, point, visit)

    def _first(self, fault: Fault, point: Point) -> bool:
        """Writes the mark; False if the fault has happened before and happens only once."""
        mark = f"{point}:{Action.NOTE}" if fault.point == ANY else fault.text
        again = fault.visit == 0 and fault.action is not Action.NOTE
        if mark in self._done:
            return again
        self._done.add(mark)
        return self._mark(mark) or again

    def _mark(self, mark: str) -> bool:
        if self._seen is None:
            return True
        fd = os.open(self._seen, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # two processes of one test reach the same point
            if mark in seen(self._seen):
                return False
            os.write(fd, f"{mark} {os.getpid()}\n".encode())
            return True
        finally:
            os.close(fd)

    def _happen(self, fault: Fault, point: Point, visit: int) -> None:
        if fault.action is Action.NOTE:
            return
        log.warning("fault_reached: %s, visit %d of %s", fault.text, visit, point)
        match fault.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                # To this very thread: the process's signal may be taken by another one while this one runs on.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case Action.DELAY:
                time.sleep(fault.seconds)
            case Action.RAISE:
                raise FaultRaised(f"{VARIABLE}: {fault.text}")


_armed: _Armed | None = None


def arm(environ: Mapping[str, str]) -> None:
    """Reads the variables; what was armed before is void. Raises `LocalError` with `bad_config`."""
    global _armed
    text = environ.get(VARIABLE, "").strip()
    _armed = _Armed(text, environ.get(SEEN_VARIABLE, "").strip()) if text else None


def armed() -> bool:
    """Is the variable set?"""
    return _armed is not None


def reach(point: Point) -> None:
    """The process is at this point. Raises `FaultRaised` if a test wants it to."""
    if _armed is not None:
        _armed.reach(point)


def around(step: Callable[[T], None], points: Callable[[T], Around]) -> Callable[[T], None]:
    """`step` between its points; `step` itself, at no cost, where nothing is armed when this is called."""
    if _armed is None:
        return step

    def stepped(subject: T) -> None:
        before, after = points(subject)
        if before is not None:
            reach(before)
        step(subject)
        if after is not None:
            reach(after)

    return stepped


def seen(path: Path) -> dict[str, int]:
    """The marks in a marks file, and the pid of who made each. For tests."""
    if not path.exists():
        return {}
    lines = [line.rsplit(" ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return {mark: int(pid) for mark, pid in lines}
