"""The process between the hosts of `benchmarks.links`: delays packets, delivers or drops them.

`python -m benchmarks.links_relay '[[descriptors], [[rate_bps, delay_s, queue_s], ...]]'`

A packet leaves when the sender's uplink has sent everything before it, is under way for the delays
of both ends, and is there when the receiver's downlink has taken everything before it. The downlink
takes a packet's first bits before its last have left the uplink, so two ends of one rate cost that
rate once.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import select
import sys
import time
from dataclasses import dataclass

_MAX_PACKET_BYTES = 65_600
_BATCH = 64  # packets read from one host before the others get their turn
_LONGEST_WAIT_S = 1.0


@dataclass
class Host:
    """One end: its device and its link."""

    tun: int
    seconds_per_byte: float
    delay_s: float
    queue_s: float
    uplink_free_s: float = 0.0
    downlink_free_s: float = 0.0


class Relay:
    """All hosts, and the packets that are under way."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self._by_tun = {host.tun: host for host in hosts}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._num_packets = 0

    def run(self) -> None:
        """Relays until the process is killed."""
        tuns = [host.tun for host in self._hosts]
        while True:
            wait_s = self._deliver_due()
            readable, _, _ = select.select(tuns, (), (), wait_s)
            for tun in readable:
                self._take_from(self._by_tun[tun])

    def _deliver_due(self) -> float:
        """Writes what has arrived; seconds until the next arrival."""
        while self._under_way:
            wait_s = self._under_way[0][0] - time.monotonic()
            if wait_s > 0:
                return wait_s
            _, _, tun, packet = heapq.heappop(self._under_way)
            # A host whose device is down loses the packet, as on a wire.
            with contextlib.suppress(OSError):
                os.write(tun, packet)
        return _LONGEST_WAIT_S

    def _take_from(self, sender: Host) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(sender.tun, _MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            number = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # 10.213.0.(host + 1)
            if 0 <= number < len(self._hosts):
                self._send(sender, self._hosts[number], packet)

    def _send(self, sender: Host, receiver: Host, packet: bytes) -> None:
        now = time.monotonic()
        begin_s = max(now, sender.uplink_free_s)
        if begin_s - now > sender.queue_s:
            return
        way_s = sender.delay_s + receiver.delay_s
        sent_s = begin_s + len(packet) * sender.seconds_per_byte
        sender.uplink_free_s = sent_s
        taken_s = max(begin_s + way_s, receiver.downlink_free_s)
        if taken_s - begin_s - way_s > receiver.queue_s:
            return
        arrival_s = max(taken_s + len(packet) * receiver.seconds_per_byte, sent_s + way_s)
        receiver.downlink_free_s = arrival_s
        self._num_packets += 1
        heapq.heappush(self._under_way, (arrival_s, self._num_packets, receiver.tun, packet))


def main(arguments: str) -> None:
    """Says that it is ready, and relays."""
    tuns, shapes = json.loads(arguments)
    hosts = [
        Host(tun, 8 / rate_bps, delay_s, queue_s)
        for tun, (rate_bps, delay_s, queue_s) in zip(tuns, shapes, strict=True)
    ]
    print("ready", flush=True)
    Relay(hosts).run()


if __name__ == "__main__":
    main(sys.argv[1])
