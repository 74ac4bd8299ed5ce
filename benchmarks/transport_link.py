"""A stream of tensors over an emulated link of 100 Mbps and 40 ms, beside the link's own rate.

`python -m benchmarks.transport_link ADDRESSES RANK COUNT` is one end: the first sends, the other
prints bytes per second from the first frame it has taken in to the last one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack

import torch

from benchmarks.links import REPOSITORY, Access, Network
from benchmarks.transport_far import LANE, PLAN, send_frame
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import PeerAddress
from ravnest.wire.codec import decode

LINK = Access(100e6, 0.01)
FRAME_BYTES = 4 << 20
TIMEOUT_S = 300


def share_of_link(count: int) -> dict[str, float]:
    """Payload bytes per second over what the link lets through beside headers of packets."""
    with Network([LINK, LINK]) as network, ExitStack() as stack:
        check = network.check(0, 1)
        addresses = json.dumps([f"{network.address(i)}:8080" for i in range(2)])
        ends = []
        for rank in range(2):
            line = [sys.executable, "-m", "benchmarks.transport_link", addresses, f"{rank}"]
            end = subprocess.Popen(
                network.command(rank, [*line, f"{count}"]),
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(end.wait)
            stack.callback(end.kill)
            ends.append(end)
        measured = [end.communicate(timeout=TIMEOUT_S)[0] for end in ends]
        rate_bps = 8 * float(measured[1])
        return {
            "rate_bps": rate_bps,
            "of_link": rate_bps / (LINK.rate_bps * network.payload_share),
            "link_error": check.error,
        }


def main(addresses: str, rank: str, count: str) -> None:
    """One end."""
    torch.set_num_threads(1)
    own, peer = int(rank), 1 - int(rank)
    places = json.loads(addresses)
    peers = [PeerAddress(peer, places[peer])]
    transport = GrpcTransport(own, places[own], peers, PLAN, insecure=True)
    transport.start()
    if own == 0:
        values = torch.rand(FRAME_BYTES // 4)
        for _ in range(int(count) + 1):
            send_frame(transport, peer, values)
        transport.receive(peer, LANE, purpose="that all has come")
    else:
        started = 0.0
        for number in range(int(count) + 1):
            message = transport.receive(peer, LANE, purpose="a frame")
            decode(message.header, memoryview(message.payload[0]))
            if number == 0:
                started = time.perf_counter()
        print(int(count) * FRAME_BYTES / (time.perf_counter() - started))
        send_frame(transport, peer, torch.zeros(1))
    transport.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
