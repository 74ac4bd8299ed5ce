"""What stages hold and send for tensors that several of them use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.budget.holdings import Purposes
from ravnest.planning.inputs.table import Bools, Ints, SharedTensor

_MESSAGES = 2
"""An owner and a replica each hold a message of values and one of gradients."""


@dataclass(frozen=True, slots=True)
class SharedRoles:
    """Who of the stages between boundaries, which broadcast, uses a tensor and how.

    Attributes:
        owned: owns a tensor that later stages use.
        is_replica: holds a copy of what an earlier stage owns.
    """

    shared: SharedTensor
    owned: Bools
    is_replica: Bools

    @classmethod
    def of(cls, shared: SharedTensor, positions: Ints, start: Ints, end: Ints) -> SharedRoles:
        """The roles of stages from `start` to `end`."""
        is_used = shared.next_use[start] < positions[end]
        is_first = shared.next_use[start] == shared.next_use[0]
        owned = is_used & is_first & (shared.last_use >= positions[end])
        return cls(shared, owned, is_used & ~is_first)

    def purposes(self, stashed: int) -> Purposes:
        """Bytes beyond those of an owner alone, by purpose."""
        num_bytes = self.shared.num_bytes
        replica: Ints = num_bytes * self.is_replica.astype(np.int64)
        if not self.shared.trainable:
            return {"parameters": replica}
        return {
            "parameters": replica,
            "gradients": replica,
            "stashed": stashed * replica,
            "communication": _MESSAGES * (replica + num_bytes * self.owned),
        }

    def exchanged_bytes(self) -> Ints:
        """Bytes sent per optimizer step: a replica's gradient, or an owner's values."""
        sent: Ints = self.shared.num_bytes * (self.owned | self.is_replica).astype(np.int64)
        return sent if self.shared.trainable else np.zeros_like(sent)


def most_shared_bytes(shared: SharedTensor, stashed: int) -> int:
    """What a stage holds for a shared tensor at most, whatever it computes."""
    return shared.num_bytes * (2 + stashed + _MESSAGES if shared.trainable else 1)
