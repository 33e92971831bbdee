"""A ROUTER that sends every message back, in Python as the metaserver is: what a round trip costs here, whoever answers it.

catalogue_echo.py ENDPOINT
"""

from __future__ import annotations

import sys

from pegaflow.common.bus.sockets import SocketFactory


def main(endpoint: str) -> None:
    sock, _ = SocketFactory().router(endpoint)
    while True:
        sock.send_multipart(sock.recv_multipart())


if __name__ == "__main__":
    main(sys.argv[1])
