"""A stream of tensors between two processes, beside a raw socket and a bare gRPC stream.

`python -m benchmarks.transport [--json] [--quick]`. Rates are of frames of one tensor, encoded,
sent, received and decoded one after another, on loopback; the raw socket sends and receives into
buffers made before. Each repeat measures all kinds in turn, so that a drifting machine drifts for
all; figures are medians, ratios medians of each repeat's ratio. There is no figure for TLS, which
the transport does not have.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.transport_far import (
    FAR,
    LANE,
    MAX_ECHO_BYTES,
    METHOD,
    NEAR,
    PLAN,
    SERVICE,
    send_frame,
)
from ravnest.node.allocator import keep_freed_memory
from ravnest.transport.grpc_options import grpc
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import PeerAddress
from ravnest.wire.codec import decode

REPOSITORY = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
MIB = 1 << 20
NUM_BYTES_PER_RUN = 512 * MIB
MIN_RATIOS = {64 * MIB: 0.65, 16 * MIB: 0.55}
MAX_CPU_S_PER_GB = 0.9
MAX_ROUND_TRIP = 1.3


class FarEnd:
    """The process at the other end, and the three ways to it."""

    def __init__(self, process: subprocess.Popen[str], stack: ExitStack, near_port: int) -> None:
        self._process = process
        ports = self._answer()
        self.raw = stack.enter_context(socket.create_connection((HOST, ports["raw"])))
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = stack.enter_context(grpc.insecure_channel(f"{HOST}:{ports['echo']}"))
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stack.callback(self._requests.put, None)
        method = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        self._responses = method(iter(self._requests.get, None))
        far = process.args[-2]  # type: ignore[index]
        peers = [PeerAddress(FAR, f"{HOST}:{far}")]
        self.transport = GrpcTransport(NEAR, f"{HOST}:{near_port}", peers, PLAN)
        self.transport.start()
        stack.callback(self.transport.abort, "the benchmark is over")

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
    near, far = free_ports(2)
    with ExitStack() as stack:
        command = ["-m", "benchmarks.transport_far", HOST, str(far), f"{HOST}:{near}"]
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield FarEnd(process, stack, near)


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
            ratio, cpu = rates["ratio"], rates["ravnest"]["cpu_s_per_gb"]
            claims += [
                Claim(f"rate of {name} tensors over a raw socket's", ratio, goal, at_least=True),
                Claim(f"processor s per GB, both ends, {name} tensors", cpu, MAX_CPU_S_PER_GB),
            ]
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
    if not arguments.json:
        show(figures)
    return finish(figures, claims, as_json=arguments.json)


def compare_rates(far: FarEnd, num_bytes: int, count: int, repeats: int) -> dict[str, Any]:
    """GB/s and processor seconds per GB of both kinds, and the ratio of the rates."""
    values = torch.rand(num_bytes // 4)
    flat = memoryview(values.view(torch.uint8).numpy())

    def raw() -> None:
        far.raw.sendall(flat)

    def ravnest() -> None:
        send_frame(far.transport, FAR, values)

    runs: dict[str, list[dict[str, float]]] = {"raw": [], "ravnest": []}
    for repeat in range(repeats + 1):
        for kind, send in (("raw", raw), ("ravnest", ravnest)):
            with far.taking(kind, num_bytes, count) as run:
                for _ in range(count):
                    send()
            if repeat:  # the first warms up
                runs[kind].append(run)
    gb = num_bytes * count / 1e9
    pairs = zip(runs["ravnest"], runs["raw"], strict=True)
    return {
        **{
            kind: {
                "gb_per_s": statistics.median(gb / run["wall_s"] for run in each),
                "cpu_s_per_gb": statistics.median(run["cpu_s"] / gb for run in each),
            }
            for kind, each in runs.items()
        },
        "ratio": statistics.median(other["wall_s"] / own["wall_s"] for own, other in pairs),
    }


def compare_round_trips(far: FarEnd, count: int, repeats: int) -> dict[str, float]:
    """Median microseconds of a 1 KiB round trip by kind, and Ravnest's over bare gRPC's."""
    values = torch.rand(MAX_ECHO_BYTES // 4)
    payload = bytes(MAX_ECHO_BYTES)
    buffer = memoryview(bytearray(MAX_ECHO_BYTES))

    def raw() -> None:
        far.raw.sendall(payload)
        take_raw_back(far.raw, buffer)

    def ravnest() -> None:
        send_frame(far.transport, FAR, values)
        message = far.transport.receive(FAR, LANE, purpose="a frame")
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
        for kind in ("raw", "ravnest"):
            rate = rates[kind]
            print(
                f"{name:>7} {kind:8} {rate['gb_per_s']:6.2f} GB/s"
                f" {rate['cpu_s_per_gb']:6.2f} processor s per GB"
            )
    trips = figures["round_trip_us"]
    print("  1 KiB " + ", ".join(f"{k} {trips[k]:.0f} us" for k in ("raw", "grpc", "ravnest")))


if __name__ == "__main__":
    sys.exit(main())
