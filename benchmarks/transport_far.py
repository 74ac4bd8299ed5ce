"""The far end of `benchmarks.transport`: takes in what comes over a raw socket, gRPC and Ravnest.

`python -m benchmarks.transport_far PLACES`, the places as JSON, prints its other ports, then does
what each line of its input says: the bytes of a payload and how many will come.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.certificates import credentials_in
from benchmarks.transport_bare import BareTaker
from ravnest.node.allocator import keep_freed_memory
from ravnest.transport.grpc_options import grpc
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress
from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Frame, FrameKind

PLAN = "0" * 64
NEAR, FAR = 0, 1
LANE = "forward"
SERVICE, METHOD = "benchmark", "Echo"
# Payloads up to this size are sent back one by one: round trips are measured, not rates.
MAX_ECHO_BYTES = 1 << 10
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Places:
    """Where both ends are.

    Attributes:
        host: of both.
        near, far: `host:port` of the transport without TLS.
        near_secured, far_secured: of that with TLS.
        folder: of certificates.
    """

    host: str
    near: str
    far: str
    near_secured: str
    far_secured: str
    folder: str

    def transports(self, node: int) -> dict[str, GrpcTransport]:
        """Those of one end, started, by kind."""
        files = credentials_in(Path(self.folder), node)
        made = {}
        for kind, near, far, credentials in (
            ("ravnest", self.near, self.far, None),
            ("tls", self.near_secured, self.far_secured, files),
        ):
            own, peer = (near, PeerAddress(FAR, far)) if node == NEAR else (far, None)
            peers = [peer or PeerAddress(NEAR, near)]
            made[kind] = GrpcTransport(node, own, peers, PLAN, credentials=credentials)
            made[kind].start()
        return made


def main(places: Places) -> None:
    """Serves until the input ends."""
    torch.set_num_threads(1)
    keep_freed_memory()
    host = places.host
    buffer = memoryview(bytearray(MAX_BYTES))
    listener = socket.create_server((host, 0))
    echo = echo_server()
    echo_port = echo.add_insecure_port(f"{host}:0")
    echo.start()
    bare = BareTaker(host, buffer)
    transports = places.transports(FAR)
    ports = {"raw": listener.getsockname()[1], "echo": echo_port, "bare": bare.port}
    print(json.dumps(ports), flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        order = json.loads(line)
        cpu = time.process_time()
        for _ in range(order["count"]):
            if order["kind"] == "raw":
                take_raw(connection, buffer[: order["num_bytes"]])
            elif order["kind"] == "bare":
                bare.take(order["num_bytes"])
            else:
                take_frame(transports[order["kind"]], order["num_bytes"])
        print(json.dumps({"cpu_s": time.process_time() - cpu}), flush=True)
    connection.close()
    listener.close()
    for transport in transports.values():
        transport.close()
    bare.stop()
    echo.stop(None).wait()


def take_raw(connection: socket.socket, into: memoryview) -> None:
    """Receives one payload into a buffer made before."""
    got = 0
    while got < into.nbytes:
        got += connection.recv_into(into[got:])
    if into.nbytes <= MAX_ECHO_BYTES:
        connection.sendall(into)


def take_frame(transport: GrpcTransport, num_bytes: int) -> None:
    """Receives one frame as a tensor."""
    message = transport.receive(NEAR, LANE, purpose="a frame")
    frame = decode(message.header, memoryview(message.payload[0]))
    if num_bytes <= MAX_ECHO_BYTES:
        send_frame(transport, NEAR, frame.tensors["values"])


def send_frame(transport: GrpcTransport, peer: int, values: torch.Tensor) -> None:
    """Sends a tensor as a stage does."""
    frame = Frame(FrameKind.ACTIVATION, tensors={"values": values})
    header, buffers = encode(frame)
    transport.send(peer, LANE, Message(header, tuple(buffers)), purpose="a frame")


def echo_server() -> Any:
    """A bare bidirectional stream that sends back what comes, set up as gRPC comes."""
    server = grpc.server(futures.ThreadPoolExecutor(1))

    def echo(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    handler = grpc.stream_stream_rpc_method_handler(echo, None, None)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
    server.add_generic_rpc_handlers((handlers,))
    return server


if __name__ == "__main__":
    main(Places(**json.loads(sys.argv[1])))
