"""Everything that is measured on one node, and the entry that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.probing.compute import ComputeReading
from ravnest.probing.link import LinkReading
from ravnest.probing.memory import MemoryReading
from ravnest.probing.recording import Entry


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What one node can do.

    Attributes:
        memory: of the device.
        compute: of the device.
        links: to each peer, in the order asked for.
    """

    memory: MemoryReading
    compute: ComputeReading
    links: tuple[LinkReading, ...]

    @property
    def bandwidth_bps(self) -> float | None:
        """Of the slowest link, in its slower direction; None without links."""
        return min((link.bandwidth_bps for link in self.links), default=None)

    @property
    def latency_s(self) -> float | None:
        """This node's share of the longest delay, half of one way; None without links.

        A plan adds the latencies of both ends.
        """
        return max((link.one_way_s / 2 for link in self.links), default=None)


def entry_of(
    reading: NodeReading,
    node_id: int,
    address: str | None,
    *,
    ram_gb: float | None = None,
    bandwidth_mbps: float | None = None,
) -> Entry:
    """What of a reading goes into node_configs.json.

    Args:
        address: of a new entry; None keeps the one in the file.
        ram_gb: what the owner offers, in place of what was measured.
        bandwidth_mbps: what the owner says, in place of what was measured.
    """
    bandwidth, latency = reading.bandwidth_bps, reading.latency_s
    measured_mbps = None if bandwidth is None else bandwidth * 1e-6
    return Entry(
        node_id=node_id,
        address=address,
        ram_gb=reading.memory.offered_bytes * 1e-9 if ram_gb is None else ram_gb,
        bandwidth_mbps=measured_mbps if bandwidth_mbps is None else bandwidth_mbps,
        flops_gflops=reading.compute.flops * 1e-9,
        latency_ms=None if latency is None else latency * 1e3,
        device=reading.memory.device,
    )


def expected_entry(
    node_id: int,
    address: str | None,
    peers: Sequence[str],
    *,
    device: str,
    ram_gb: float | None,
    bandwidth_mbps: float | None,
) -> Entry:
    """An entry of the same fields as the measured one will have, to be refused before it is."""
    return Entry(
        node_id=node_id,
        address=address,
        ram_gb=1.0 if ram_gb is None else ram_gb,
        bandwidth_mbps=1.0 if peers and bandwidth_mbps is None else bandwidth_mbps,
        flops_gflops=1.0,
        latency_ms=1.0 if peers else None,
        device=device,
    )
