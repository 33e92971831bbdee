"""The socket factory: every ZeroMQ socket of the project is made here, with every default that bites changed.

Why each option: LINGER 0, because the default (−1) hangs `term()`; bounded queues, because unbounded ones hide a stopped peer
until memory ends; heartbeats on, because a cut cable is otherwise noticed by nobody; reconnect at most every 250 ms;
ROUTER_MANDATORY, because a ROUTER otherwise drops silently; MAXMSGSIZE, because a peer's length field must not choose our memory.
"""

from __future__ import annotations

import socket
from pathlib import Path

import zmq
from pegaflow.common.wire.codec import MAX_BODY_BYTES
from pegaflow.common.wire.errors import ErrorCode, LocalError

QUEUE_MESSAGES = 10_000
MAX_MESSAGE_BYTES = MAX_BODY_BYTES
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 4_000
RECONNECT_MS = 20
RECONNECT_MAX_MS = 250
HANDSHAKE_MS = 5_000
MAX_IPC_PATH = 107


def check_endpoint(endpoint: str) -> str:
    """Returns the endpoint if ZeroMQ can use it; raises `bad_endpoint` saying what is wrong."""
    scheme, mark, rest = endpoint.partition("://")
    if not mark or scheme not in ("tcp", "ipc"):
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{endpoint!r}: expected tcp://HOST:PORT or ipc://PATH")
    if scheme == "ipc":
        if not rest.startswith("/") or len(rest.encode()) > MAX_IPC_PATH:
            raise LocalError(
                ErrorCode.BAD_ENDPOINT, f"{endpoint!r}: an ipc path is absolute and has at most {MAX_IPC_PATH} bytes"
            )
        return endpoint
    host, mark, port = rest.rpartition(":")
    if not host or not mark or not (port == "*" or (port.isdigit() and 0 < int(port) < 65536)):
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{endpoint!r}: expected tcp://HOST:PORT with a port of 1 to 65535 or *")
    return endpoint


def _is_served(path: Path) -> bool:
    """Whether somebody listens on this Unix socket; a path left by a dead process refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its backlog is full: it listens, but stands still
            return True
        except OSError:
            return False
    return True


class SocketFactory:
    """Makes sockets in one context and ends them all with `close()`. One factory per event loop; sockets never change threads."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.BLOCKY, 0)

    def _make(self, kind: int) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        sock.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        sock.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        sock.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        sock.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        return sock

    def _connected(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        check_endpoint(endpoint)
        sock = self._make(kind)
        try:
            sock.connect(endpoint)
        except zmq.ZMQError as error:
            sock.close()
            raise LocalError(ErrorCode.BAD_ENDPOINT, f"cannot connect to {endpoint}: {error.strerror}") from None
        return sock

    def _bound(self, kind: int, endpoint: str, options: dict[int, int | bytes]) -> tuple[zmq.Socket[bytes], str]:
        sock = self._make(kind)
        for option, value in options.items():
            sock.setsockopt(option, value)
        try:
            return sock, self.bind(sock, endpoint)
        except LocalError:
            sock.close()
            raise

    def router(self, endpoint: str) -> tuple[zmq.Socket[bytes], str]:
        """A bound ROUTER and the endpoint it really has."""
        return self._bound(zmq.ROUTER, endpoint, {zmq.ROUTER_MANDATORY: 1})

    def dealer(self, endpoint: str) -> zmq.Socket[bytes]:
        """A connected DEALER. It queues while nobody is there; the RPC client drops that queue when a deadline passes."""
        return self._connected(zmq.DEALER, endpoint)

    def bound_sub(self, endpoint: str) -> tuple[zmq.Socket[bytes], str]:
        """A bound SUB that takes everything."""
        return self._bound(zmq.SUB, endpoint, {zmq.SUBSCRIBE: b""})

    def bound_xpub(self, endpoint: str) -> tuple[zmq.Socket[bytes], str]:
        """A bound XPUB that shows each subscription, repeated ones too, so that each subscriber gets its welcome."""
        return self._bound(zmq.XPUB, endpoint, {zmq.XPUB_VERBOSE: 1})

    def xpub(self, endpoint: str) -> zmq.Socket[bytes]:
        """A connected XPUB: the publisher sees when the bound SUB has subscribed."""
        return self._connected(zmq.XPUB, endpoint)

    def sub(self, endpoint: str) -> zmq.Socket[bytes]:
        """A connected SUB without subscriptions."""
        return self._connected(zmq.SUB, endpoint)

    def bind(self, sock: zmq.Socket[bytes], endpoint: str) -> str:
        """Binds; returns the endpoint with its real port. Raises `bad_endpoint` or `port_in_use`; the socket stays as it was."""
        check_endpoint(endpoint)
        if endpoint.startswith("ipc://"):
            path = Path(endpoint[6:])
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_served(path):  # ZeroMQ would unlink the path and take it over without a word
                raise LocalError(ErrorCode.PORT_IN_USE, f"cannot bind {endpoint}: another process listens there")
        try:
            sock.bind(endpoint)
        except zmq.ZMQError as error:
            code = ErrorCode.PORT_IN_USE if error.errno == zmq.EADDRINUSE else ErrorCode.BAD_ENDPOINT
            raise LocalError(code, f"cannot bind {endpoint}: {error.strerror}") from None
        return sock.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Closes what is left open and ends the context."""
        self._context.destroy(linger=0)
