"""The socket factory: every ZeroMQ socket of the project is made here, with every default that bites changed.

Why each option: LINGER 0, because the default (−1) hangs `term()`; bounded queues, because unbounded ones hide a stopped peer
until memory ends; heartbeats on, because a cut cable is otherwise noticed by nobody; reconnect at most every 250 ms;
ROUTER_MANDATORY, because a ROUTER otherwise drops silently; MAXMSGSIZE, because a peer's length field must not choose our memory.

With a keyring every TCP socket speaks CURVE: nobody without a listed key gets as far as a message, and what is bound is told with
this process's public key behind it. ipc stays as it is: there the file system says who may come in. Without keys TCP is bound
on loopback only, unless somebody has said `plaintext_network`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path

import zmq
from pegaflow.common.bus import auth
from pegaflow.common.bus.endpoint import is_of_this_machine, parse_endpoint
from pegaflow.common.bus.keyring import Keyring, check_connects, to_z85
from pegaflow.common.private import private_directory
from pegaflow.common.wire.codec import MAX_BODY_BYTES
from pegaflow.common.wire.errors import ErrorCode, LocalError

QUEUE_MESSAGES = 10_000
MAX_MESSAGE_BYTES = MAX_BODY_BYTES
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 4_000
RECONNECT_MS = 20
RECONNECT_MAX_MS = 250
HANDSHAKE_MS = 5_000
_HANDSHAKES = int(
    zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def check_bind(endpoint: str, ring: Keyring | None, plaintext_network: bool) -> str:
    """The endpoint, if a service with these keys may listen there. Raises `plaintext_network` or `bad_endpoint`."""
    at = parse_endpoint(endpoint)
    if at.key:
        raise LocalError(ErrorCode.BAD_ENDPOINT, f"{at.address}: the key of what is bound here is that of curve_key_file")
    if ring is None and not plaintext_network and not is_of_this_machine(endpoint):
        raise LocalError(
            ErrorCode.PLAINTEXT_NETWORK,
            f"{endpoint} could be reached, and read, by anybody: give curve_key_file and curve_allowed "
            "(`pegaflow keys gen`, docs/security.md), or say allow_plaintext_network",
        )
    if at.is_tcp and ring is not None and not ring.serves:
        raise LocalError(ErrorCode.BAD_CONFIG, f"{endpoint}: with curve_key_file it needs curve_allowed, or nobody could come in")
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
    """Makes sockets in one context and ends them all with `close()`. One factory per event loop; sockets never change threads.

    With a keyring the first TCP bind must come from the running loop, on which the doorman then stands.
    """

    def __init__(self, ring: Keyring | None = None, *, plaintext_network: bool = False) -> None:
        self.ring, self._plaintext_network = ring, plaintext_network
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.BLOCKY, 0)
        self._doorman: auth.Doorman | None = None

    @property
    def refused(self) -> Counter[str]:
        """Connections that were refused, by reason."""
        return self._doorman.refused if self._doorman is not None else Counter()

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
        return self._connect(self._make(kind), endpoint)

    def _connect(self, sock: zmq.Socket[bytes], endpoint: str) -> zmq.Socket[bytes]:
        """The same socket; closed where it cannot be connected."""
        try:
            at = parse_endpoint(check_connects(self.ring, endpoint))
        except LocalError:
            sock.close()
            raise
        try:
            if at.key and self.ring is not None:
                sock.setsockopt(zmq.CURVE_SERVERKEY, to_z85(at.key))
                sock.setsockopt(zmq.CURVE_PUBLICKEY, self.ring.public)
                sock.setsockopt(zmq.CURVE_SECRETKEY, self.ring.secret)
            sock.connect(at.address)
        except zmq.ZMQError as error:
            sock.close()
            raise LocalError(ErrorCode.BAD_ENDPOINT, f"cannot connect to {at.address}: {error.strerror}") from None
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

    def watched(self, kind: int, endpoint: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A connected socket, and a PAIR that says how its handshakes go (zmq_socket_monitor).

        Call `disable_monitor` on the first before the PAIR is closed: libzmq's thread would wait for somebody to read.
        """
        sock = self._make(kind)
        watch = sock.get_monitor_socket(_HANDSHAKES)
        try:
            return self._connect(sock, endpoint), watch
        except LocalError:
            watch.close()
            raise

    def sub(self, endpoint: str) -> zmq.Socket[bytes]:
        """A connected SUB without subscriptions."""
        return self._connected(zmq.SUB, endpoint)

    def bind(self, sock: zmq.Socket[bytes], endpoint: str) -> str:
        """Binds; returns the endpoint with its real port, and with CURVE its key.

        Raises `bad_endpoint`, `port_in_use`, `plaintext_network` or `unsafe_path`; the socket stays as it was.
        """
        at = parse_endpoint(check_bind(endpoint, self.ring, self._plaintext_network))
        if not at.is_tcp:
            path = Path(endpoint[6:])
            private_directory(path.parent)
            if _is_served(path):  # ZeroMQ would unlink the path and take it over without a word
                raise LocalError(ErrorCode.PORT_IN_USE, f"cannot bind {endpoint}: another process listens there")
        self._arm(sock, at.is_tcp)
        try:
            sock.bind(endpoint)
        except zmq.ZMQError as error:
            code = ErrorCode.PORT_IN_USE if error.errno == zmq.EADDRINUSE else ErrorCode.BAD_ENDPOINT
            raise LocalError(code, f"cannot bind {endpoint}: {error.strerror}") from None
        if not at.is_tcp:
            with suppress(OSError):  # the directory is what guards it
                path.chmod(0o600)
        bound = sock.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"{bound}#{self.ring.public_hex}" if at.is_tcp and self.ring is not None else bound

    def _arm(self, sock: zmq.Socket[bytes], is_tcp: bool) -> None:
        """CURVE for what this socket binds next, or none: libzmq copies the options at each bind."""
        if self.ring is None:
            return
        if not is_tcp:
            if sock.getsockopt(zmq.CURVE_SERVER):  # of a TCP bind before; a domain cannot be taken back, so it has its own
                sock.setsockopt(zmq.CURVE_SERVER, 0)
                sock.setsockopt(zmq.ZAP_DOMAIN, auth.LOCAL)
            return
        if self._doorman is None:
            from_libzmq = self._context.socket(zmq.ROUTER)
            from_libzmq.setsockopt(zmq.LINGER, 0)
            from_libzmq.bind(auth.ENDPOINT)
            self._doorman = auth.Doorman(from_libzmq, self.ring, asyncio.get_running_loop())
        is_publisher = sock.getsockopt(zmq.TYPE) == zmq.XPUB
        sock.setsockopt(zmq.ZAP_DOMAIN, auth.EVENTS if is_publisher else auth.ASKS)
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody comes in, rather than everybody
        sock.setsockopt(zmq.CURVE_SECRETKEY, self.ring.secret)
        sock.setsockopt(zmq.CURVE_PUBLICKEY, self.ring.public)
        sock.setsockopt(zmq.CURVE_SERVER, 1)

    def close(self) -> None:
        """Closes what is left open and ends the context."""
        if self._doorman is not None:
            self._doorman.close()
        self._context.destroy(linger=0)
