"""A stream of tensors between two processes, beside a raw socket and a bare gRPC stream.

`python -m benchmarks.transport [--json] [--quick]`. Rates are of frames of one tensor, encoded,
sent, received and decoded one after another, on loopback, without and with TLS; the raw socket
sends and receives into buffers made before, and so does the bare gRPC stream, which shows what gRPC
itself takes (`benchmarks.transport_bare`). Each repeat measures all kinds in turn, so that a
drifting machine drifts for all; figures are medians, ratios medians of each repeat's ratio. The
rate over a slow link needs Linux and root (`benchmarks.links`); without, the report says so.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.certificates import issue
from benchmarks.links import MAX_ERROR, why_impossible
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.transport_bare import BareGiver
from benchmarks.transport_far import (
    FAR,
    LANE,
    MAX_ECHO_BYTES,
    METHOD,
    NEAR,
    SERVICE,
    Places,
    send_frame,
)
from benchmarks.transport_link import share_of_link
from ravnest.node.allocator import keep_freed_memory
from ravnest.transport.grpc_options import grpc
from ravnest.wire.codec import decode

REPOSITORY = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
MIB = 1 << 20
NUM_BYTES_PER_RUN = 512 * MIB
MIN_RATIOS = {64 * MIB: 0.65, 16 * MIB: 0.55}
MAX_CPU_S_PER_GB = 0.9
MAX_ROUND_TRIP = 1.3
MIN_TLS_RATIO = 0.4
MIN_OF_LINK = 0.97
KINDS = ("raw", "bare", "ravnest", "tls")


class FarEnd:
    """The process at the other end, and the ways to it."""

    def __init__(self, process: subprocess.Popen[str], stack: ExitStack, places: Places) -> None:
        self._process = process
        ports = self._answer()
        self.raw = stack.enter_context(socket.create_connection((HOST, ports["raw"])))
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = stack.enter_context(grpc.insecure_channel(f"{HOST}:{ports['echo']}"))
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stack.callback(self._requests.put, None)
        method = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        self._responses = method(iter(self._requests.get, None))
        self.bare = BareGiver(f"{HOST}:{ports['bare']}")
        stack.callback(self.bare.close)
        self.transports = places.transports(NEAR)
        for transport in self.transports.values():
            stack.callback(transport.abort, "the benchmark is over")

    def echo(self, payload: bytes) -> bytes:
        """One round trip on the bare gRPC stream."""
        self._requests.put(payload)
        return next(self._responses)

    @contextmanager
    def taking(self, kind: str, num_bytes: int, count: int) -> Iterator[dict[str, float]]:
        """Filled with wall seconds and both ends' processor seconds, from order to receipt."""
        figures: dict[str, float] = {}
        order = json.dumps({"kind": kind, "num_bytes": num_bytes, "count": count})
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        started, cpu = time.perf_counter(), time.process_time()
        yield figures
        far = self._answer()
        figures["wall_s"] = time.perf_counter() - started
        figures["cpu_s"] = time.process_time() - cpu + far["cpu_s"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def far_end() -> Iterator[FarEnd]:
    """Starts the other process."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        issue(Path(folder), (NEAR, FAR))
        places = Places(HOST, *(f"{HOST}:{port}" for port in free_ports(4)), folder=folder)
        command = ["-m", "benchmarks.transport_far", json.dumps(asdict(places))]
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield FarEnd(process, stack, places)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    torch.set_num_threads(1)
    keep_freed_memory()
    repeats = 1 if arguments.quick else 9
    claims = []
    figures: dict[str, Any] = {"rates": {}}
    with far_end() as far:
        for num_bytes, goal in MIN_RATIOS.items():
            name = f"{num_bytes // MIB} MiB"
            total = 4 * num_bytes if arguments.quick else NUM_BYTES_PER_RUN
            rates = compare_rates(far, num_bytes, total // num_bytes, repeats)
            figures["rates"][name] = rates
            claims += rate_claims(name, rates, goal)
        figures["round_trip_us"] = compare_round_trips(
            far, 100 if arguments.quick else 500, repeats
        )
    claims.append(
        Claim(
            "1 KiB round trip over a bare gRPC stream's",
            figures["round_trip_us"]["ratio"],
            MAX_ROUND_TRIP,
        )
    )
    if (reason := why_impossible()) is not None:
        figures["no_link"] = reason
        print(f"no emulated link: {reason}", file=sys.stderr)
    else:
        figures["link"] = link = share_of_link(1 if arguments.quick else 8)
        claims += [
            Claim("error of the emulated link", link["link_error"], MAX_ERROR),
            Claim("rate over that of the link", link["of_link"], MIN_OF_LINK, at_least=True),
        ]
    if not arguments.json:
        show(figures)
    return finish(figures, claims, as_json=arguments.json)


def rate_claims(name: str, rates: dict[str, Any], goal: float) -> list[Claim]:
    """What holds of tensors of one size."""
    over_raw, cpu = rates["over_raw"], rates["ravnest"]["cpu_s_per_gb"]
    return [
        Claim(
            f"rate of {name} tensors over a raw socket's", over_raw["ravnest"], goal, at_least=True
        ),
        Claim(f"processor s per GB, both ends, {name} tensors", cpu, MAX_CPU_S_PER_GB),
        Claim(
            f"rate of {name} tensors over TLS over a raw socket's",
            over_raw["tls"],
            MIN_TLS_RATIO,
            at_least=True,
        ),
    ]


def compare_rates(far: FarEnd, num_bytes: int, count: int, repeats: int) -> dict[str, Any]:
    """GB/s and processor seconds per GB of every kind, and rates over the raw socket's."""
    values = torch.rand(num_bytes // 4)
    flat = memoryview(values.view(torch.uint8).numpy())

    calls: dict[str, Callable[[], None]] = {
        "raw": lambda: far.raw.sendall(flat),
        "bare": lambda: far.bare.give(flat),
        "ravnest": lambda: send_frame(far.transports["ravnest"], FAR, values),
        "tls": lambda: send_frame(far.transports["tls"], FAR, values),
    }
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats + 1):
        for kind, send in calls.items():
            with far.taking(kind, num_bytes, count) as run:
                for _ in range(count):
                    send()
            if repeat:  # the first warms up
                runs[kind].append(run)
    gb = num_bytes * count / 1e9
    return {
        **{
            kind: {
                "gb_per_s": statistics.median(gb / run["wall_s"] for run in each),
                "cpu_s_per_gb": statistics.median(run["cpu_s"] / gb for run in each),
            }
            for kind, each in runs.items()
        },
        "over_raw": {
            kind: statistics.median(
                raw["wall_s"] / own["wall_s"] for own, raw in zip(each, runs["raw"], strict=True)
            )
            for kind, each in runs.items()
        },
    }


def compare_round_trips(far: FarEnd, count: int, repeats: int) -> dict[str, float]:
    """Median microseconds of a 1 KiB round trip by kind, and Ravnest's over bare gRPC's."""
    values = torch.rand(MAX_ECHO_BYTES // 4)
    payload = bytes(MAX_ECHO_BYTES)
    buffer = memoryview(bytearray(MAX_ECHO_BYTES))
    transport = far.transports["ravnest"]

    def raw() -> None:
        far.raw.sendall(payload)
        take_raw_back(far.raw, buffer)

    def ravnest() -> None:
        send_frame(transport, FAR, values)
        message = transport.receive(FAR, LANE, purpose="a frame")
        decode(message.header, memoryview(message.payload[0]))

    kinds: dict[str, Callable[[], Any]] = {
        "raw": raw,
        "grpc": lambda: far.echo(payload),
        "ravnest": ravnest,
    }
    medians: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, trip in kinds.items():
            with far.taking(kind, MAX_ECHO_BYTES, 0 if kind == "grpc" else count):
                medians[kind].append(statistics.median(timed(trip) for _ in range(count)))
    pairs = zip(medians["ravnest"], medians["grpc"], strict=True)
    return {
        **{kind: statistics.median(each) * 1e6 for kind, each in medians.items()},
        "ratio": statistics.median(own / other for own, other in pairs),
    }


def take_raw_back(connection: socket.socket, into: memoryview) -> None:
    """Receives an echo."""
    got = 0
    while got < into.nbytes:
        got += connection.recv_into(into[got:])


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def show(figures: dict[str, Any]) -> None:
    """Prints what was measured."""
    for name, rates in figures["rates"].items():
        for kind in KINDS:
            rate = rates[kind]
            print(
                f"{name:>7} {kind:8} {rate['gb_per_s']:6.2f} GB/s"
                f" {rate['cpu_s_per_gb']:6.2f} processor s per GB,"
                f" {rates['over_raw'][kind]:.2f} of raw"
            )
    trips = figures["round_trip_us"]
    if "link" in figures:
        print(f" 4 MiB over 100 Mbps, 40 ms: {figures['link']['rate_bps'] / 1e6:.2f} Mbps")
    print("  1 KiB " + ", ".join(f"{k} {trips[k]:.0f} us" for k in ("raw", "grpc", "ravnest")))


if __name__ == "__main__":
    sys.exit(main())
