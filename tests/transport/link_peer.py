"""A node in a process of its own, for the tests that kill, stop or question real processes.

Usage: link_peer.py ACTION NODE_ID OTHER_ID ADDRESS OTHER_ADDRESS
"""

from __future__ import annotations

import sys

from transport_support import PLAN, QUICK

from ravnest.errors import TransportError
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress


def main(action: str, node_id: int, other: int, address: str, other_address: str) -> None:
    transport = GrpcTransport(node_id, address, [PeerAddress(other, other_address)], PLAN, QUICK)
    transport.start()
    if action == "report":
        report(transport, other)
        return
    transport.send(other, "seen", Message(b"alive"), purpose="a sign of life")
    match action:
        case "wait":
            transport.receive(other, "never", purpose="what never comes")
        case "echo":
            transport.send(
                other, "back", transport.receive(other, "forth", purpose="it"), purpose="it"
            )
            transport.close()
        case "forget":
            # Ends without closing: nothing may keep the process.
            transport.receive(other, "forth", purpose="it")


def report(transport: GrpcTransport, other: int) -> None:
    """Prints how the other node refuses this one, on whichever call that shows."""
    try:
        transport.send(other, "seen", Message(b"alive"), purpose="a sign of life")
        transport.receive(other, "never", purpose="what never comes")
    except TransportError as error:
        transport.close()
        print(type(error).__name__, error)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
