"""Error feedback: what rounding dropped in one round is added in the next. Knows no peer."""

from __future__ import annotations

import torch


class Feedback:
    """The errors of one member's messages, element by element of a flat buffer.

    In a ring each member encodes every element once: a partial sum, or as its owner the mean. Both
    errors are kept in units of the mean, and added before the member encodes that element the
    next time (Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019,
    "Error Feedback Fixes SignSGD"). So the means of all rounds together are off by what is
    kept after the last one alone. A round that is not applied changes nothing.
    """

    def __init__(self) -> None:
        self._kept = torch.zeros(0)
        self._next = torch.zeros(0)

    @property
    def kept(self) -> torch.Tensor:
        """What the next round will add, float32, in units of the mean."""
        return self._kept

    def begin(self, length: int) -> None:
        """Prepares for a round over a buffer of so many elements, in each the same."""
        if self._kept.numel() != length:
            self._kept = torch.zeros(length)
            self._next = torch.zeros(length)

    def add(self, start: int, values: torch.Tensor, total: float) -> None:
        """Adds what was kept to a part of a sum.

        Args:
            start: position of the first value in the buffer.
            total: what the sum will be divided by.
        """
        values.add_(self._kept[start : start + values.numel()], alpha=total)

    def keep(self, start: int, values: torch.Tensor, decoded: torch.Tensor, total: float) -> None:
        """Notes what encoding a part of a sum dropped: as `add`."""
        error = self._next[start : start + values.numel()]
        torch.sub(values, decoded, out=error)
        if total != 1.0:
            error.div_(total)

    def commit(self) -> None:
        """The round was applied: what it dropped is what the next one adds."""
        self._kept, self._next = self._next, self._kept
