"""Measures one TCP connection: rate and round trip. Run at both ends by `benchmarks.links`.

`python -m benchmarks.links_probe serve PORT`
`python -m benchmarks.links_probe measure HOST PORT NUM_BYTES`
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import time

_NUM_ROUND_TRIPS = 15
_PIECE_BYTES = 1 << 16
_TIMES = struct.Struct("!dd")


def serve(port: int) -> None:
    """Takes one connection: echoes single bytes, then takes the bulk and says when it came."""
    with socket.create_server(("", port)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_NUM_ROUND_TRIPS):
            connection.sendall(connection.recv(1))
        (num_bytes,) = struct.unpack("!q", _exactly(connection, 8))
        buffer = bytearray(_PIECE_BYTES)
        warm_up, taken, first_s = num_bytes // 4, 0, 0.0
        counted_from = 0
        while taken < num_bytes:
            taken += connection.recv_into(buffer)
            # The connection has to find out how fast the link is first.
            if not first_s and taken >= warm_up:
                first_s, counted_from = time.monotonic(), taken
        seconds = time.monotonic() - first_s
        connection.sendall(_TIMES.pack(seconds, float(taken - counted_from)))


def measure(host: str, port: int, num_bytes: int) -> tuple[float, float]:
    """Bits per second of payload, and the median round trip in seconds."""
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trips = []
        for _ in range(_NUM_ROUND_TRIPS):
            begin_s = time.monotonic()
            connection.sendall(b"x")
            _exactly(connection, 1)
            round_trips.append(time.monotonic() - begin_s)
        connection.sendall(struct.pack("!q", num_bytes))
        piece = bytes(_PIECE_BYTES)
        left = num_bytes
        while left:
            left -= connection.send(piece[: min(left, _PIECE_BYTES)])
        seconds, counted = _TIMES.unpack(_exactly(connection, _TIMES.size))
    return counted * 8 / seconds, statistics.median(round_trips)


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        piece = connection.recv(num_bytes - len(received))
        if not piece:
            raise ConnectionError("the other end has gone")
        received += piece
    return received


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        json.dump(measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), sys.stdout)
