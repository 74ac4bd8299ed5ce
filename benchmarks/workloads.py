"""The models that benchmarks train, as sequences of blocks, with their data and cuts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.transformer import Block
from benchmarks.waits import (
    GPT_LEAVES,
    HEAVY_LEAVES,
    LEAVES,
    gpt_third,
    heavy,
    leaf,
    root,
    stem,
)
from examples.digits.model import BATCH_SIZE, DigitsCNN

SEED = 0
VOCABULARY = 8192
WIDTH = 384
NUM_BLOCKS = 9
NUM_HEADS = 6
CONTEXT = 128


@dataclass(frozen=True)
class Workload:
    """One model to train.

    Attributes:
        build: the model, seeded, as a sequence that can be sliced.
        stage_ends: where the peer's stages end in that sequence, for three stages.
        num_microbatches: per optimizer step.
        inputs, targets: one step's data, (samples, ...).
        loss: of one microbatch, to be divided by `num_microbatches`.
        leaves: submodules that stay code, with the functions that build them.
    """

    name: str
    build: Callable[[], torch.nn.Sequential]
    stage_ends: tuple[int, int, int]
    num_microbatches: int
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    leaves: Mapping[str, str] = field(default_factory=dict)

    def loader(self, num_steps: int) -> DataLoader:
        """`num_steps` times the same step, a batch per microbatch."""
        dataset = TensorDataset(
            self.inputs.repeat(num_steps, *[1] * (self.inputs.dim() - 1)),
            self.targets.repeat(num_steps, *[1] * (self.targets.dim() - 1)),
        )
        return DataLoader(dataset, batch_size=len(self.inputs) // self.num_microbatches)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """AdamW over the model's parameters."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)


class Embedding(torch.nn.Module):
    """Token and position embeddings: (N, T) integers to (N, T, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Embedding(CONTEXT, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))


def gpt() -> Workload:
    """22.3 million parameters, a step of 16 x 128 tokens in 8 microbatches."""

    def build() -> torch.nn.Sequential:
        torch.manual_seed(SEED)
        blocks = [Block(WIDTH, NUM_HEADS) for _ in range(NUM_BLOCKS)]
        head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        return torch.nn.Sequential(Embedding(), *blocks, torch.nn.LayerNorm(WIDTH), head)

    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(0, VOCABULARY, (16, CONTEXT), generator=generator)
    return Workload(
        name="gpt",
        build=build,
        stage_ends=(5, 8, NUM_BLOCKS + 3),
        num_microbatches=8,
        inputs=tokens,
        targets=torch.roll(tokens, -1, 1),
        loss=lambda logits, y: functional.cross_entropy(
            logits.reshape(-1, VOCABULARY), y.reshape(-1)
        ),
    )


def digits() -> Workload:
    """The demo's network, a step of one batch in 4 microbatches."""

    def build() -> torch.nn.Sequential:
        torch.manual_seed(SEED)
        model = DigitsCNN()
        relu, pool = torch.nn.ReLU, torch.nn.MaxPool2d
        return torch.nn.Sequential(
            *(model.conv2d_1, model.bn_1, relu(), model.conv2d_2, model.bn_2, relu(), pool(2)),
            *(model.conv2d_3, model.bn_3, relu(), model.dropout, torch.nn.Flatten()),
            *(model.dense_1, relu(), model.dense_2),
        )

    generator = torch.Generator().manual_seed(SEED + 1)
    return Workload(
        name="digits",
        build=build,
        stage_ends=(6, 10, 15),
        num_microbatches=4,
        inputs=torch.rand((BATCH_SIZE, 1, 8, 8), generator=generator),
        targets=torch.randint(0, 10, (BATCH_SIZE,), generator=generator),
        loss=functional.cross_entropy,
    )


def waits(num_microbatches: int) -> Workload:
    """Three stages that wait."""
    inputs = torch.ones(num_microbatches, 4)
    return Workload(
        name="waits",
        build=lambda: torch.nn.Sequential(root(), stem(), leaf()),
        stage_ends=(1, 2, 3),
        num_microbatches=num_microbatches,
        inputs=inputs,
        targets=inputs,
        loss=functional.mse_loss,
        leaves=LEAVES,
    )


def _gpt_like(
    name: str, stages: Sequence[Callable[[], torch.nn.Module]], leaves: Mapping[str, str]
) -> Workload:
    """Three stages that exchange as many bytes as the GPT's."""
    tokens = gpt().inputs
    inputs = torch.ones(*tokens.shape, WIDTH)
    return Workload(
        name=name,
        build=lambda: torch.nn.Sequential(*(stage() for stage in stages)),
        stage_ends=(1, 2, 3),
        num_microbatches=8,
        inputs=inputs,
        targets=torch.zeros(len(tokens)),  # few bytes, like the GPT's tokens
        loss=lambda x, y: functional.mse_loss(x.mean((1, 2)), y),
        leaves=leaves,
    )


def gpt_waits() -> Workload:
    """Stages that wait as long as the GPT's compute."""
    return _gpt_like("gpt waits", [gpt_third] * 3, GPT_LEAVES)


def heavy_waits() -> Workload:
    """Stages that wait as they are told, and have as much to average as the GPT's."""
    return _gpt_like("heavy waits", [heavy] * 3, HEAVY_LEAVES)


WAITS = {f"waits, {number} microbatches": number for number in (4, 8, 16)}
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gpt": gpt,
    "gpt waits": gpt_waits,
    "heavy waits": heavy_waits,
    "digits": digits,
    **{name: functools.partial(waits, number) for name, number in WAITS.items()},
}
