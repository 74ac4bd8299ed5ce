"""Keyed randomness: every random operator has a stream of its own per microbatch.

The seed of an operator is a hash of (run seed, cluster, microbatch, the operator's position in
the whole model's graph). So a second run repeats the first, recomputing a microbatch repeats its
dropout masks, and the masks do not depend on how many stages the model was cut into.
"""

from __future__ import annotations

import hashlib
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ravnest.plan.identity import MicrobatchId

MAX_SEED = 2**32 - 1

# torch's default generators belong to the whole process, and operators can draw from no other. Held
# from the first seed to the restored state, so that two nodes in one process do not mix.
_default_generators = threading.Lock()


def set_seed(seed: int = 42) -> None:
    """Seeds `random`, numpy and torch (CPU and accelerators) of this process.

    Raises:
        ValueError: `seed` is not an integer in 0 .. 2**32-1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed={seed!r} is not possible; expected an integer in 0 .. {MAX_SEED}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def operator_seed(run_seed: int, cluster_id: int, microbatch: MicrobatchId, position: int) -> int:
    """64-bit seed of one random operator for one microbatch."""
    key = struct.pack(
        "<QqqqQ",
        run_seed & 0xFFFF_FFFF_FFFF_FFFF,
        cluster_id,
        microbatch.epoch,
        microbatch.index,
        position,
    )
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


class KeyedRandomness:
    """Seeds the operators of one stage, and leaves the process's own generators as they were.

    Args:
        run_seed: the same on all nodes of a run; the root announces it.
        cluster_id: clusters draw different masks for the same batch number.
        device: where the stage computes; its default generator is used and restored.
    """

    def __init__(self, run_seed: int, cluster_id: int, device: torch.device) -> None:
        self.run_seed = run_seed
        self._cluster_id = cluster_id
        self._generator = _default_generator(device)

    @contextmanager
    def microbatch(self, microbatch: MicrobatchId) -> Iterator[Callable[[int], None]]:
        """Yields the function that an operator's position is passed to before it draws."""
        saved: torch.Tensor | None = None

        def seed_operator(position: int) -> None:
            nonlocal saved
            if saved is None:  # stages without random operators never pay for it
                _default_generators.acquire()
                saved = self._generator.get_state()
            self._generator.manual_seed(
                operator_seed(self.run_seed, self._cluster_id, microbatch, position)
            )

        try:
            yield seed_operator
        finally:
            if saved is not None:
                self._generator.set_state(saved)
                _default_generators.release()


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    raise ValueError(f"device {device} has no generator that could be seeded")
