"""What compression costs a training: final losses with values that went over the wire.

A character GPT over three stages under `async`, one process with the weight versions that the
schedule gives (`benchmarks.convergence`); between stages every activation and gradient is coded and
decoded by the codecs of a compression. Part of `benchmarks.wan`.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.convergence.runs import Run, final_loss
from benchmarks.convergence.side_by_side import processes
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.schedule import Schedule
from ravnest.wire.codec import decode, encode
from ravnest.wire.compression import COMPRESSIONS, Compression
from ravnest.wire.frame import Codec, Frame, FrameKind

NUM_STAGES = 3
RATE = 4e-3


class _OnTheWire(torch.autograd.Function):
    """The identity, as the other end of a link sees it, in both directions."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, codecs: Compression
    ) -> torch.Tensor:
        ctx.codec = codecs.gradient  # type: ignore[attr-defined]  # the way to keep what is no tensor
        return over_the_wire(x, codecs.activation)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        return over_the_wire(gradient, ctx.codec), None  # type: ignore[attr-defined]


class Link(torch.nn.Module):
    """What lies between two stages."""

    def __init__(self, compression: str) -> None:
        super().__init__()
        self._codecs = COMPRESSIONS[compression]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        arrived: torch.Tensor = _OnTheWire.apply(x, self._codecs)
        return arrived


def over_the_wire(tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
    """A tensor as it arrives."""
    header, buffers = encode(Frame(FrameKind.ACTIVATION, tensors={"x": tensor}), codec)
    return decode(header, bytearray().join(buffers)).tensors["x"]


def compare(compression: str, *, num_seeds: int, shortened: int) -> dict[str, Any]:
    """Mean final loss over seeds, without compression and with it on every link.

    Runs go on side by side, one for each core.
    """
    kinds = ("none", compression)
    with processes() as pool:
        runs = {
            kind: [pool.submit(_loss, kind, seed, shortened) for seed in range(num_seeds)]
            for kind in kinds
        }
        losses = {kind: [run.result() for run in each] for kind, each in runs.items()}
    plain, coded = (statistics.fmean(losses[kind]) for kind in kinds)
    return {"losses": losses, "behind": coded / plain - 1}


def _loss(compression: str, seed: int, shortened: int) -> float:
    run = Run("text", "adamw", Schedule.ASYNC, NUM_STAGES, DelayCompensation.AUTO, RATE, seed)
    if compression == "none":
        return final_loss(run, shortened=shortened)
    between = [Link(compression) for _ in range(NUM_STAGES - 1)]
    return final_loss(run, shortened=shortened, between=between)
