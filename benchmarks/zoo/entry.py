"""What a model of the zoo is: how to build it, how to call it, and what may vary between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Call = tuple[tuple[Any, ...], dict[str, Any]]

NUM_TOKENS = 60
"""Vocabulary of every language model here."""

SEED = 20
TOLERANCE = 1e-5
BFLOAT16_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Entry:
    """One row of the zoo.

    Attributes:
        name: as the row is called.
        build: the model in train mode; the caller seeds torch before.
        call: positional and keyword inputs for a batch and a sequence length.
        build_small: the same architecture, narrow and shallow, for trainings of many steps; None
            where `build` is small already, or cannot be smaller.
        batch: samples of the example that the model is captured with.
        other_batch: samples of another call.
        length: tokens of the example, where the model takes a sequence.
        other_length: tokens of another call; None where the length is fixed or there is none.
        tolerance: largest difference that counts as equal, see `comparing.difference`.
        leaves: submodules that stay code, with the factories that providers trust.
    """

    name: str
    build: Callable[[], nn.Module]
    call: Callable[[int, int], Call]
    build_small: Callable[[], nn.Module] | None = None
    batch: int = 4
    other_batch: int = 3
    length: int = 12
    other_length: int | None = None
    tolerance: float = TOLERANCE
    leaves: Mapping[str, str] = field(default_factory=dict)

    def model(self, seed: int = SEED) -> nn.Module:
        """The model with repeatable weights."""
        torch.manual_seed(seed)
        return self.build()

    def small_model(self) -> nn.Module:
        """The model to train for many steps, with repeatable weights."""
        torch.manual_seed(SEED)
        return (self.build_small or self.build)()

    def calls(self) -> dict[str, Call]:
        """Repeatable calls: the example, and what may vary."""
        sizes = {
            "example": (self.batch, self.length),
            "other batch": (self.other_batch, self.length),
        }
        if self.other_length is not None:
            sizes["other length"] = (self.batch, self.other_length)
        made: dict[str, Call] = {}
        for name, (batch, length) in sizes.items():
            torch.manual_seed(SEED + batch + length)
            made[name] = self.call(batch, length)
        return made


def tokens(batch: int, length: int) -> torch.Tensor:
    """Random token numbers, (batch, length) int64."""
    return torch.randint(0, NUM_TOKENS, (batch, length))


def kept(batch: int, length: int) -> torch.Tensor:
    """A mask of the tokens that are no padding, (batch, length) int64.

    Every second row and the last is padded, so that each microbatch has a row that is: a library
    may look whether there is any padding, and compute by another way where there is none.
    """
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[(batch - 1) % 2 :: 2, length - 2 :] = 0
    return mask


def images(channels: int, size: int) -> Callable[[int, int], Call]:
    """Calls with random images, (batch, channels, size, size) float32."""
    return lambda batch, _: ((torch.randn(batch, channels, size, size),), {})


def vectors(width: int) -> Callable[[int, int], Call]:
    """Calls with random vectors, (batch, width) float32."""
    return lambda batch, _: ((torch.randn(batch, width),), {})
