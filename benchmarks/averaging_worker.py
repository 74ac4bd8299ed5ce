"""One member of `benchmarks.averaging`: rounds of Ravnest, gloo's all-reduce, raw TCP, in turn.

`python -m benchmarks.averaging_worker CASE RANK`, the case as JSON; prints one JSON object.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ravnest.averaging import Averager
from ravnest.errors import AveragingError
from ravnest.node.allocator import keep_freed_memory
from ravnest.plan.parts import RingMembership
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import PeerAddress
from ravnest.wire.frame import Codec

PLAN = "0" * 64
MAIN, OTHER = "w", "other"


@dataclass(frozen=True)
class Case:
    """What the members do.

    Attributes:
        addresses: of every member, for Ravnest.
        raw: of every member, for plain sockets.
        store: `host:port` at the first member, where gloo's processes meet.
        devices: network device of every member.
        num_bytes: of fp32 values that are averaged.
        repeats: timed rounds of each kind, in turn.
        codec: how fp32 values travel in Ravnest's rounds.
        num_failing: rounds that are refused after all bytes have moved, each followed by one
            that is applied; instead of the timed rounds.
        rate_bps: bits per second that links can do, as plans say it; None on loopback.
        warm_rounds: rounds of each kind before the timed ones.
    """

    addresses: list[str]
    raw: list[str]
    store: str
    devices: list[str]
    num_bytes: int
    repeats: int
    codec: str = Codec.RAW.name
    num_failing: int = 0
    rate_bps: float | None = None
    warm_rounds: int = 2


class RawPipe:
    """One TCP connection to the next member, and one from the member before."""

    def __init__(self, addresses: list[str], rank: int) -> None:
        hosts = [address.rsplit(":", 1) for address in addresses]
        host, port = hosts[(rank + 1) % len(hosts)]
        with socket.create_server((hosts[rank][0], int(hosts[rank][1]))) as listener:
            dist.barrier()  # all listen
            self._out = socket.create_connection((host, int(port)))
            self._in, _ = listener.accept()
        self._buffer = memoryview(bytearray(1 << 20))

    def exchange(self, num_bytes: int) -> int:
        """Sends and receives that many bytes at once; returns what was sent."""
        sender = threading.Thread(target=self._out.sendall, args=(bytes(num_bytes),))
        sender.start()
        left = num_bytes
        while left:
            left -= self._in.recv_into(self._buffer[: min(left, self._buffer.nbytes)])
        sender.join()
        return num_bytes

    def close(self) -> None:
        """Ends both connections."""
        self._out.close()
        self._in.close()


@dataclass
class Member:
    """One member's tensors and connections."""

    case: Case
    rank: int
    transport: GrpcTransport
    averager: Averager
    tensors: dict[str, torch.Tensor]
    flat: torch.Tensor
    pipe: RawPipe
    round_id: int = 0
    figures: dict[str, Any] = field(default_factory=dict)

    def average(self, *, fails: bool = False) -> int:
        """One round; the bytes sent. A round that `fails` is refused in the votes, by one ring."""
        tensors = dict(self.tensors)
        if fails and self.rank == 0:
            del tensors[OTHER]
        self.round_id += 1
        try:
            result = self.averager.average(
                tensors, round_id=self.round_id, num_samples=8, finished=False
            )
        except AveragingError:
            if not fails:
                raise
            return 0
        if fails:
            raise RuntimeError("the round was to fail")
        return result.sent_bytes

    def gloo(self) -> int:
        """The same by gloo, over one flat tensor."""
        dist.all_reduce(self.flat)
        self.flat.div_(len(self.case.addresses))
        return 0

    def raw(self) -> int:
        """As many bytes as a ring sends, by plain sockets, waiting for nobody: the links' best."""
        size = len(self.case.addresses)
        return self.pipe.exchange(2 * (size - 1) * self.case.num_bytes // size)


def shapes_of(num_bytes: int) -> list[int]:
    """Elements of tensors as a transformer has them: a few large, many small."""
    left, sizes = num_bytes // 4, []
    for size in (left // 4, left // 4, left // 8, left // 8, left // 16, left // 16):
        sizes.append(size)
        left -= size
    return [*sizes, left - 1000, *[100] * 10]


def join(case: Case, rank: int) -> Member:
    """Connects both ways."""
    size = len(case.addresses)
    os.environ["GLOO_SOCKET_IFNAME"] = case.devices[rank]
    dist.init_process_group("gloo", init_method=f"tcp://{case.store}", rank=rank, world_size=size)
    torch.manual_seed(rank)
    lengths = shapes_of(case.num_bytes)
    tensors = {f"{MAIN}{i}": torch.randn(length) for i, length in enumerate(lengths)}
    names = tuple(tensors)
    tensors[OTHER] = torch.randn(10)
    members = tuple(range(size))
    rings = [
        RingMembership(0, rank, size, members, names, ()),
        RingMembership(1, rank, size, members, (OTHER,), ()),
    ]
    peers = [PeerAddress(i, address, case.rate_bps) for i, address in enumerate(case.addresses)]
    transport = GrpcTransport(rank, case.addresses[rank], peers, PLAN, insecure=True)
    transport.start()
    averager = Averager(
        rank, rings if case.num_failing else rings[:1], transport, codec=Codec[case.codec]
    )
    return Member(
        case,
        rank,
        transport,
        averager,
        tensors,
        torch.randn(case.num_bytes // 4),
        RawPipe(case.raw, rank),
    )


def time_rounds(member: Member) -> None:
    """Seconds of every round, all kinds in turn, all members starting together."""
    calls = {"raw": member.raw, "gloo": member.gloo, "ravnest": member.average}
    seconds: dict[str, list[float]] = {kind: [] for kind in calls}
    for repeat in range(member.case.warm_rounds + member.case.repeats):
        for kind, call in calls.items():
            dist.barrier()
            started, processor = time.perf_counter(), time.process_time()
            sent_bytes = call()
            took, used = time.perf_counter() - started, time.process_time() - processor
            if repeat >= member.case.warm_rounds:
                seconds[kind].append(took)
                member.figures.setdefault(f"{kind}_processor_s", []).append(used)
    member.figures.update(seconds=seconds, sent_bytes=sent_bytes)


def fail_rounds(member: Member) -> None:
    """Rounds that fail and rounds that do not, in turn; resident bytes after each pair."""
    resident = []
    for _ in range(member.case.num_failing):
        member.average(fails=True)
        member.average()
        gc.collect()
        resident.append(psutil.Process().memory_info().rss)
    member.figures["resident_bytes"] = resident


def main(case: Case, rank: int) -> dict[str, Any]:
    """Plays the case as one member; its figures."""
    torch.set_num_threads(1)
    keep_freed_memory()
    member = join(case, rank)
    if case.num_failing:
        fail_rounds(member)
    else:
        time_rounds(member)
    digest = hashlib.sha256()
    for name in sorted(member.tensors.keys() - {OTHER}):
        digest.update(member.tensors[name].numpy().data)
    member.figures["digest"] = digest.hexdigest()
    dist.barrier()
    member.pipe.close()
    member.transport.close()
    dist.destroy_process_group()
    return member.figures


def command(case: Case, rank: int) -> list[str]:
    """How a member is started."""
    return [
        sys.executable,
        "-m",
        "benchmarks.averaging_worker",
        json.dumps(asdict(case)),
        f"{rank}",
    ]


if __name__ == "__main__":
    print(json.dumps(main(Case(**json.loads(sys.argv[1])), int(sys.argv[2]))))
