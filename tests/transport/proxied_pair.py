"""Two nodes that reach each other through a proxy alone, which may break what goes through it."""

from __future__ import annotations

from cutting_proxy import CuttingProxy
from transport_support import PLAN, free_address

from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import PeerAddress, TransportSettings

PATIENT = TransportSettings(timeout_s=60.0, report_every_s=5.0, window=4, reconnect_s=30.0)


class Pair:
    """Two nodes that reach each other through a proxy alone."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.proxy = proxy
        self.addresses = [free_address(), free_address()]
        self.made: list[GrpcTransport] = []

    def start(
        self, settings: TransportSettings = PATIENT, **options: object
    ) -> list[GrpcTransport]:
        for node in range(2):
            self.start_one(node, settings, **options)
        return self.made

    def start_one(
        self, node: int, settings: TransportSettings = PATIENT, **options: object
    ) -> GrpcTransport:
        port = self.proxy.port_for(int(self.addresses[1 - node].rpartition(":")[2]))
        peer = PeerAddress(1 - node, f"127.0.0.1:{port}")
        made = GrpcTransport(node, self.addresses[node], [peer], PLAN, settings, **options)
        self.made.append(made)
        made.start()
        return made

    def end(self) -> None:
        for transport in self.made:
            transport.abort("the test is over")
        self.proxy.close()
