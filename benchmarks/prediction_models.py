"""The models that `benchmarks.prediction` trains, with one microbatch of data each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.transformer import Block
from benchmarks.workloads import gpt

SEED = 0


@dataclass(frozen=True)
class Training:
    """A model and what it is trained on.

    Attributes:
        inputs, targets: of one microbatch, (samples, ...); every microbatch is the same.
        loss: of one microbatch.
    """

    build: Callable[[], torch.nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def loader(self, num_microbatches: int) -> DataLoader:
        """So many microbatches."""

        def repeated(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.repeat(num_microbatches, *[1] * (tensor.dim() - 1))

        dataset = TensorDataset(repeated(self.inputs), repeated(self.targets))
        return DataLoader(dataset, batch_size=len(self.inputs))


def wide_gpt() -> Training:
    """22 million parameters: much to compute for what crosses a cut, 0.4 MB."""
    workload = gpt()
    count = workload.num_microbatches
    inputs, targets = workload.inputs.chunk(count)[0], workload.targets.chunk(count)[0]
    return Training(workload.build, inputs, targets, workload.loss)


def narrow_gpt() -> Training:
    """0.2 million parameters on long microbatches: little to compute for 0.5 MB over a cut."""
    width, vocabulary, context, samples = 64, 256, 128, 16

    def build() -> torch.nn.Module:
        torch.manual_seed(SEED)
        blocks = [Block(width, 4) for _ in range(3)]
        head = torch.nn.Linear(width, vocabulary, bias=False)
        embedding = torch.nn.Embedding(vocabulary, width)
        return torch.nn.Sequential(embedding, *blocks, torch.nn.LayerNorm(width), head)

    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(0, vocabulary, (samples, context), generator=generator)
    return Training(
        build,
        tokens,
        torch.roll(tokens, -1, 1),
        lambda logits, y: functional.cross_entropy(logits.flatten(0, 1), y.flatten()),
    )


def cnn() -> Training:
    """Convolutions with BatchNorm on 32 x 32 images, 32 in a microbatch."""

    def build() -> torch.nn.Module:
        torch.manual_seed(SEED)
        layers: list[torch.nn.Module] = []
        widths = (3, 32, 32, 64, 64, 128, 128)
        for number, (inner, outer) in enumerate(itertools.pairwise(widths)):
            convolution = torch.nn.Conv2d(inner, outer, 3, stride=1 + number % 2, padding=1)
            layers += [convolution, torch.nn.BatchNorm2d(outer), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128 * 16, 10))

    generator = torch.Generator().manual_seed(SEED + 1)
    return Training(
        build,
        torch.rand((32, 3, 32, 32), generator=generator),
        torch.randint(0, 10, (32,), generator=generator),
        functional.cross_entropy,
    )


TRAININGS = {"wide gpt": wide_gpt, "narrow gpt": narrow_gpt, "cnn": cnn}
