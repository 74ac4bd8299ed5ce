"""Links of a given rate, delay and queue between network namespaces of this machine (Linux, root).

Each host is a namespace with one TUN device as its only way out. What it sends is read by one relay
process (`benchmarks.links_relay`), which delivers every packet when the sender's uplink, the way
and the receiver's downlink would have. Any program runs in a host unchanged: `Network.command`.

`python -m benchmarks.links RATE_MBPS ONE_WAY_DELAY_MS` builds two hosts and measures their link.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[1]
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NO_SLOW_START = "net.ipv4.tcp_slow_start_after_idle=0"
_CONGESTION_CONTROL = "net.ipv4.tcp_congestion_control=cubic"
_FAST_BPS = 200e6
_HEADER_BYTES = 52  # of IP, TCP and its time stamps, in every packet
MAX_ERROR = 0.05


@dataclass(frozen=True)
class Access:
    """How a host is connected.

    Attributes:
        rate_bps: bits per second of its uplink, and of its downlink.
        delay_s: one way, from it to the middle of the network; two hosts are the sum of both apart.
        queue_s: what may wait at either end of its link, in seconds of sending; more is dropped.
    """

    rate_bps: float
    delay_s: float
    queue_s: float = 0.25


@dataclass(frozen=True)
class LinkCheck:
    """A link as measured, beside what was asked.

    Attributes:
        rate_bps: of a bulk transfer over TCP, headers of the packets included.
        round_trip_s: median of small messages.
    """

    rate_bps: float
    round_trip_s: float
    asked_rate_bps: float
    asked_round_trip_s: float

    @property
    def error(self) -> float:
        """The larger of both relative errors; a round trip may be 0.5 ms off, the relay's own."""
        rate = abs(self.rate_bps / self.asked_rate_bps - 1)
        late_s = max(0.0, abs(self.round_trip_s - self.asked_round_trip_s) - 0.5e-3)
        return max(rate, late_s / max(self.asked_round_trip_s, 1e-3))


def why_impossible() -> str | None:
    """Why there can be no emulated links here, or None."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` (iproute2) is missing"
    return None if _TUN.exists() else f"{_TUN} is missing"


class Network:
    """Hosts and the relay between them, as a context manager.

    Args:
        hosts: how each is connected; host i has the address `address(i)`.
        mtu: bytes of a packet at most; None for 1500, or 9000 where a host is fast. The relay takes
            a while per packet, so many hosts at once need large ones.
        is_tuned: TCP does not start slowly after pauses, as docs/transport.md advises for links of
            long delay. Its congestion control is always that of a machine where nobody chose one.
    """

    def __init__(
        self, hosts: Sequence[Access], mtu: int | None = None, *, is_tuned: bool = False
    ) -> None:
        self.hosts = tuple(hosts)
        self._names = [f"ravnest-{os.getpid()}-{i}" for i in range(len(hosts))]
        self._stack = ExitStack()
        is_fast = max(host.rate_bps for host in hosts) > _FAST_BPS
        self._mtu = mtu or (9000 if is_fast else 1500)
        self._settings = [_CONGESTION_CONTROL, *([NO_SLOW_START] if is_tuned else [])]

    @property
    def payload_share(self) -> float:
        """Of the bytes on a link those that are no headers of packets."""
        return 1 - _HEADER_BYTES / self._mtu

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"10.213.0.{host + 1}"

    def device(self, host: int) -> str:
        """Name of a host's only network device beside loopback."""
        return f"rvn{os.getpid()}_{host}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """A command line that runs `command` in a host."""
        return ["ip", "netns", "exec", self._names[host], *command]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            tuns = [self._add_host(stack, host) for host in range(len(self.hosts))]
            shapes = [[h.rate_bps, h.delay_s, h.queue_s] for h in self.hosts]
            relay = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.links_relay", json.dumps([tuns, shapes])],
                pass_fds=tuns,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
            )
            stack.callback(_end, relay)
            assert relay.stdout is not None
            if relay.stdout.readline() != b"ready\n":
                raise RuntimeError("the relay between the hosts did not start")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check(self, source: int, target: int, seconds: float = 2.0) -> LinkCheck:
        """Measures a link with nothing else on it."""
        asked_bps = min(self.hosts[host].rate_bps for host in (source, target))
        port, num_bytes = "9000", str(int(asked_bps / 8 * seconds))
        module = [sys.executable, "-m", "benchmarks.links_probe"]
        server = subprocess.Popen(
            self.command(target, [*module, "serve", port]), cwd=REPOSITORY, stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()  # it listens
            client = [*module, "measure", self.address(target), port, num_bytes]
            measured = subprocess.run(
                self.command(source, client),
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                check=True,
                timeout=60 + 10 * seconds,
            )
        finally:
            _end(server)
        rate_bps, round_trip_s = json.loads(measured.stdout)
        return LinkCheck(
            rate_bps=rate_bps / self.payload_share,
            round_trip_s=round_trip_s,
            asked_rate_bps=asked_bps,
            asked_round_trip_s=2 * (self.hosts[source].delay_s + self.hosts[target].delay_s),
        )

    def _add_host(self, stack: ExitStack, host: int) -> int:
        """Makes the namespace and its device; returns the device's other end."""
        name, device = self._names[host], self.device(host)
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "delete", name)
        tun = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, tun)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", device, "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", device)
        _ip("-n", name, "link", "set", device, "mtu", str(self._mtu), "txqueuelen", "10000", "up")
        _ip("netns", "exec", name, "sysctl", "-qw", *self._settings)
        return tun


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def main() -> int:
    """Measures one link; 1 when it is not as asked, 2 when there can be none here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate_mbps", type=float)
    parser.add_argument("one_way_delay_ms", type=float)
    arguments = parser.parse_args()
    if (reason := why_impossible()) is not None:
        print(f"no emulated links: {reason}", file=sys.stderr)
        return 2
    access = Access(arguments.rate_mbps * 1e6, arguments.one_way_delay_ms / 2e3)
    with Network([access, access]) as network:
        check = network.check(0, 1)
    print(f"rate        {check.rate_bps / 1e6:9.2f} Mbps of {check.asked_rate_bps / 1e6:g}")
    print(f"round trip  {check.round_trip_s * 1e3:9.2f} ms of {check.asked_round_trip_s * 1e3:g}")
    return 0 if check.error <= MAX_ERROR else 1


if __name__ == "__main__":
    sys.exit(main())
