"""Where a metaserver's events and commands have fault points (`common/faults.py`)."""

from __future__ import annotations

from typing import Any, Final

from pegaflow.common.fault_points import Point
from pegaflow.common.faults import NOWHERE, Around
from pegaflow.common.wire.messages.catalogue import Beat, Bye, Delta, Hello, Locate, Located, NodeDown, NodeUp
from pegaflow.services.metaserver import commands, events

_RECEIVED: Final[dict[type[Any], Around]] = {
    Hello: (Point.METASERVER_HELLO_BEFORE_APPLIED, Point.METASERVER_HELLO_AFTER_APPLIED),
    Bye: (Point.METASERVER_BYE_BEFORE_APPLIED, None),
    Locate: (Point.METASERVER_LOCATE_BEFORE_APPLIED, None),
    Delta: (Point.METASERVER_DELTA_BEFORE_APPLIED, Point.METASERVER_DELTA_AFTER_APPLIED),
}

_SENT: Final[dict[type[Any], Around]] = {
    Located: (Point.METASERVER_LOCATED_BEFORE_SENT, Point.METASERVER_LOCATED_AFTER_SENT),
    NodeUp: (Point.METASERVER_NODE_UP_BEFORE_SENT, Point.METASERVER_NODE_UP_AFTER_SENT),
    NodeDown: (Point.METASERVER_NODE_DOWN_BEFORE_SENT, Point.METASERVER_NODE_DOWN_AFTER_SENT),
    Beat: (Point.METASERVER_BEAT_BEFORE_SENT, None),
}

_COMMANDS: Final[dict[type[Any], Around]] = {
    commands.Connect: (Point.METASERVER_CONNECT_BEFORE_MADE, Point.METASERVER_CONNECT_AFTER_MADE),
    commands.Disconnect: (Point.METASERVER_DISCONNECT_BEFORE_MADE, None),
    commands.AskChunk: (Point.METASERVER_SYNC_BEFORE_SENT, None),
}


def of_event(event: events.Event) -> Around:
    """Points around taking an event in, its commands carried out included."""
    match event:
        case events.Asked(_, message):
            return _RECEIVED.get(type(message), NOWHERE)
        case events.Heard(message=message):
            return _RECEIVED.get(type(message), NOWHERE)
        case events.ChunkAnswer():
            return Point.METASERVER_SYNC_CHUNK_BEFORE_APPLIED, Point.METASERVER_SYNC_CHUNK_AFTER_APPLIED
        case _:
            return NOWHERE


def of_command(command: commands.Command) -> Around:
    """Points around carrying a command out."""
    match command:
        case commands.Reply(_, message):
            return _SENT.get(type(message), NOWHERE)
        case commands.Publish(message):
            return _SENT.get(type(message), NOWHERE)
        case _:
            return _COMMANDS.get(type(command), NOWHERE)
