"""Logging as JSON lines on stderr: an event name and fields, never a sentence to be parsed.

    log = logs.get(__name__)
    log.info("attached", engine=engine, session=session)

Lines of third-party loggers take the same form, their text in `message`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")

_FIELDS: Final = "pegaflow_fields"
_RESERVED: Final = frozenset({"ts", "level", "service", "node", "logger", "event"})


class Log:
    """Writes events of one module; cheap when the level is off."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields, False)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, fields, False)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields, False)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields, False)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Like :meth:`error`, with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, True)

    def enabled(self, level: str) -> bool:
        return self._logger.isEnabledFor(_number(level))

    def _write(self, level: int, event: str, fields: dict[str, Any], traceback: bool) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, exc_info=traceback, extra={_FIELDS: fields})


def get(name: str) -> Log:
    return Log(logging.getLogger(name))


def setup(service: str, node: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (stderr) as JSON lines.

    Replaces what an earlier call set up. Raises ValueError for a level that is not in :data:`LEVELS`.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_JsonLines(service, node))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Change the level of this process while it runs. Raises ValueError for an unknown one."""
    logging.getLogger().setLevel(_number(level))


def _number(level: str) -> int:
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping()[level.upper()]


class _JsonLines(logging.Formatter):
    def __init__(self, service: str, node: str) -> None:
        super().__init__()
        self._service = service
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "node": self._node,
            "logger": record.name,
        }
        fields = getattr(record, _FIELDS, None)
        if fields is None:
            line |= {"event": "log", "message": record.getMessage()}
        else:
            line["event"] = record.getMessage()
            # A field may not forge what identifies the line.
            line |= {f"{key}_" if key in _RESERVED else key: value for key, value in fields.items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=_plain, skipkeys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return str(value)
