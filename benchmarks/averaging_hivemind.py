"""One member of hivemind's all-reduce, for `benchmarks.averaging --hivemind PYTHON`.

`PYTHON -m benchmarks.averaging_hivemind STORE SIZE RANK NUM_BYTES REPEATS` in an environment that
has hivemind and need not have Ravnest; prints one JSON object. Timed is hivemind's AllReduceRunner
with its own defaults and the addition of the differences it returns: not how the group is found
(seconds), nor the preparation of a round, which is done when the clock starts. The values are one
flat tensor of float32.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.p2p import P2P, PeerID
from torch.distributed import TCPStore

_WARM_ROUNDS = 2
_TIMEOUT_S = 120.0
_TILE = 1 << 16


@dataclass(frozen=True)
class Group:
    """All members, connected.

    Attributes:
        store: where they meet.
        peers: by rank.
    """

    store: TCPStore
    rank: int
    p2p: P2P
    peers: list[PeerID]

    async def meet(self, where: str) -> None:
        """Waits for all members, and goes on serving those that are not through yet."""
        if self.store.add(where, 1) == len(self.peers):
            self.store.set(f"all at {where}", "")
        await asyncio.to_thread(self.store.wait, [f"all at {where}"])


async def join(address: str, size: int, rank: int) -> Group:
    """Starts this member's daemon, and connects it to those of the ranks below."""
    host, port = address.rsplit(":", 1)
    store = TCPStore(host, int(port), size, rank == 0, timedelta(seconds=_TIMEOUT_S))
    others = [store.get(f"address {other}").decode() for other in range(rank)]
    p2p = await P2P.create(initial_peers=others, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    store.set(f"address {rank}", str((await p2p.get_visible_maddrs())[0]))
    store.set(f"peer {rank}", p2p.peer_id.to_base58())
    peers = [PeerID.from_base58(store.get(f"peer {r}").decode()) for r in range(size)]
    return Group(store, rank, p2p, peers)


async def average(group: Group, values: torch.Tensor, number: int) -> float:
    """One all-reduce in place; its seconds."""
    name, size = f"round{number}", len(group.peers)
    runner = AllReduceRunner(
        p2p=group.p2p,
        servicer_type=AllReduceRunner,
        prefix=name,
        group_id=name.encode(),
        tensors=[values],
        ordered_peer_ids=group.peers,
        peer_fractions=(1 / size,) * size,
    )
    await runner.add_p2p_handlers(group.p2p, namespace=name)
    await group.meet(name)
    started = time.perf_counter()
    async for difference in runner:
        values.add_(difference)
    return time.perf_counter() - started


async def main(address: str, size: int, rank: int, num_bytes: int, repeats: int) -> list[float]:
    """Seconds of every timed round.

    Raises:
        RuntimeError: the first one did not make the mean.
    """
    torch.set_num_threads(1)
    tiles = [_tile_of(member) for member in range(size)]
    mean, length = torch.stack(tiles).mean(0), num_bytes // 4
    values = tiles[rank].repeat(-(-length // _TILE))[:length].clone()
    group = await join(address, size, rank)
    seconds = []
    for number in range(_WARM_ROUNDS + repeats):
        seconds.append(await average(group, values, number))
        if number == 0 and not all(_is_close(tile, mean) for tile in values.split(_TILE)):
            raise RuntimeError("what hivemind made is not the mean")
    await group.meet("the end")
    await group.p2p.shutdown()
    return seconds[_WARM_ROUNDS:]


def _tile_of(rank: int) -> torch.Tensor:
    """What the values of a member repeat, so that nobody needs memory for those of all."""
    return torch.randn(_TILE, generator=torch.Generator().manual_seed(rank))


def _is_close(tile: torch.Tensor, mean: torch.Tensor) -> bool:
    return torch.allclose(tile, mean[: tile.numel()], atol=1e-5)


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    print(json.dumps({"seconds": asyncio.run(main(place, *map(int, numbers)))}))
