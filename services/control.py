"""The control socket, the same for every service: look, drain, change the log level; never queued behind work."""

from __future__ import annotations

from collections.abc import Callable

from pegaflow.common import logs
from pegaflow.common.bus.rpc import Request
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages import operate
from pegaflow.common.wire.messages.facts import Facts, Reach
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services import reach


def commanded(request: Request, lifecycle: Lifecycle, asked: Callable[[Request], None]) -> None:
    """Answers one command; `asked` answers what the request socket answers too."""
    match request.message:
        case operate.Ping() | operate.Status() | operate.Dump() | Facts():
            asked(request)
        case Reach():
            reach.answer(request, request.message)
        case operate.Drain():
            request.reply(Done())
            lifecycle.drain("control")
        case operate.LogLevel(level):
            try:
                logs.set_level(level)
            except ValueError as error:
                request.fail(ErrorCode.BAD_MESSAGE, str(error))
            else:
                request.reply(Done())
        case other:
            request.fail(ErrorCode.UNSUPPORTED, f"control does not answer {other.KIND}")
