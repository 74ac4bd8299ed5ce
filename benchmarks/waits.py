"""Stages whose computing is a fixed wait, so that the number of cores is no limit.

They stay code: each is a leaf that its provider must trust by name.
"""

from __future__ import annotations

import os
import time

import torch

STAGE_S = (0.030, 0.050, 0.040)
"""Seconds that each stage takes for both passes of a microbatch; a third of it is the forward's."""

GPT_STAGE_S = 0.093
"""The same of a third of the GPT of `benchmarks.workloads` on a core of `GPT_STAGE_FLOPS`."""
GPT_STAGE_FLOPS = 123e9

_COMPUTED_S = 1e-3  # of a wait, at its end


class _Waiting(torch.autograd.Function):
    """Multiplies by a number, and takes a fixed time over it in both directions.

    What it computes is within that time, as it is for a stage that computes all the while.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        scale: torch.Tensor,
        total_s: float,
    ) -> torch.Tensor:
        over_at = time.perf_counter() + total_s / 3
        ctx.save_for_backward(x, scale)
        ctx.total_s = total_s  # type: ignore[attr-defined]  # the way to keep what is no tensor
        scaled = x * scale
        _wait_until(over_at)
        return scaled

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        over_at = time.perf_counter() + 2 * ctx.total_s / 3  # type: ignore[attr-defined]
        x, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        gradients = gradient * scale, (gradient * x).sum().reshape(scale.shape), None
        _wait_until(over_at)
        return gradients


def _wait_until(over_at: float) -> None:
    """Sleeps, and computes for the last moment: a sleep is longer than it was asked to be."""
    time.sleep(max(0.0, over_at - time.perf_counter() - _COMPUTED_S))
    while time.perf_counter() < over_at:
        pass


class Wait(torch.nn.Module):
    """(N, ...) to the same: scales, and takes a fixed time over it."""

    def __init__(self, total_s: float) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self._total_s = total_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waited: torch.Tensor = _Waiting.apply(x, self.scale, self._total_s)
        return waited


def root() -> Wait:
    """The first stage."""
    return Wait(STAGE_S[0])


def stem() -> Wait:
    """The second."""
    return Wait(STAGE_S[1])


def leaf() -> Wait:
    """The third."""
    return Wait(STAGE_S[2])


def gpt_third() -> Wait:
    """A stage that takes as long as one of the GPT's."""
    return Wait(GPT_STAGE_S)


WAIT_VARIABLE = "RAVNEST_BENCHMARK_WAIT_S"
HELD_VALUES = 7_430_000
"""A third of the GPT's parameters."""


class HeavyWait(Wait):
    """A stage that has a third of the GPT's values to average, and waits as its process is told.

    The values are a buffer, so that no optimizer has to compute with them.
    """

    def __init__(self) -> None:
        super().__init__(float(os.environ.get(WAIT_VARIABLE, "0")))
        self.register_buffer("held", torch.zeros(HELD_VALUES))


def heavy() -> HeavyWait:
    """Any of three stages."""
    return HeavyWait()


LEAVES = {str(i): f"benchmarks.waits:{each.__name__}" for i, each in enumerate((root, stem, leaf))}
GPT_LEAVES = {str(i): f"benchmarks.waits:{gpt_third.__name__}" for i in range(3)}
HEAVY_LEAVES = {str(i): f"benchmarks.waits:{heavy.__name__}" for i in range(3)}
