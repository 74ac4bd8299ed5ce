"""The transport of a provider process: gRPC, with what its plan and its script say."""

from __future__ import annotations

from ravnest.node.options import NodeOptions
from ravnest.plan.model import NodePlan
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Formats, PeerAddress, TransportSettings


def grpc_transport(plan: NodePlan, options: NodeOptions, formats: Formats) -> GrpcTransport:
    """Connects nothing before it is started."""
    return GrpcTransport(
        plan.node_id,
        plan.bind,
        [PeerAddress(peer.node_id, peer.address, peer.rate_bps) for peer in plan.peers],
        plan.plan_sha256,
        TransportSettings(
            timeout_s=options.timeout_s,
            window=_window(plan),
            reconnect_s=options.reconnect_s,
        ),
        formats=formats,
        insecure=options.insecure,
    )


def _window(plan: NodePlan) -> int:
    """More than a schedule has in flight, so that no send in training waits for a credit."""
    return max(TransportSettings().window, 2 * (plan.num_stages + plan.slack))
