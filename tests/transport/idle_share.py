"""Prints the share of a core that a process uses whose nodes wait: `idle_share.py SCENE A B`.

SCENE: "absent" (node 0 waits for node 1, which is not there) or "silent" (both are here, and node 1
says nothing). In a process of its own, so that nothing else is measured.
"""

from __future__ import annotations

import sys
import threading
import time

from transport_support import PLAN

from ravnest.errors import TransportError
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress

PERIOD_S = 4.0


def main(scene: str, *addresses: str) -> None:
    """Starts the nodes, waits, and prints the share."""
    nodes = [
        GrpcTransport(node, addresses[node], [PeerAddress(1 - node, addresses[1 - node])], PLAN)
        for node in range(1 if scene == "absent" else 2)
    ]
    for node in nodes:
        node.start()
    if scene == "silent":
        nodes[1].send(0, "seen", Message(b"alive"), purpose="it")
        nodes[0].receive(1, "seen", purpose="it")
    waiting = threading.Thread(target=wait_in_vain, args=(nodes[0],))
    waiting.start()
    before = time.process_time()
    threading.Event().wait(PERIOD_S)
    print((time.process_time() - before) / PERIOD_S, "waiting" if waiting.is_alive() else "over")
    for node in nodes:
        node.close()
    waiting.join()


def wait_in_vain(node: GrpcTransport) -> None:
    """Waits until the transport is closed."""
    try:
        node.receive(1, "forward", purpose="it")
    except TransportError:
        return
    raise AssertionError("something came")


if __name__ == "__main__":
    main(*sys.argv[1:])
