"""The three tasks: images, text, and sorting; each a sequence of blocks to cut stages of."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from benchmarks.transformer import Block

Batch = tuple[torch.Tensor, torch.Tensor]
SMOOTHING = 0.1  # else these two losses end near zero, where a ratio is all noise
CONTEXT = 32
WIDTH = 32
NUM_HEADS = 4
NUM_BLOCKS = 6
TEXT_FILES = 120
TEXT_LENGTH = 1_500_000
SORTED_LENGTH = 6
NUM_DIGITS = 10
ADAM = (1e-3, 2e-3, 4e-3, 8e-3)
ADAM_HIGH = (2e-3, 4e-3, 8e-3, 16e-3)


@dataclass(frozen=True)
class Task:
    """Something to learn.

    Attributes:
        build: from a seed to at least eight blocks; the model is their composition.
        batches: from a seed to endless training batches.
        held_out: inputs and targets to measure with.
        loss: mean over a batch.
        num_steps: of a full run.
        rates: the grid of peak rates, by optimizer.
    """

    name: str
    build: Callable[[int], list[torch.nn.Module]]
    batches: Callable[[int], Iterator[Batch]]
    held_out: Batch
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    num_steps: int
    rates: dict[str, tuple[float, ...]]


class Embedding(torch.nn.Module):
    """Tokens (N, T) to vectors (N, T, WIDTH)."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(vocabulary, WIDTH)
        self.position = torch.nn.Parameter(torch.zeros(CONTEXT, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position[: tokens.shape[1]]


def decoder(vocabulary: int) -> Callable[[int], list[torch.nn.Module]]:
    """A function from a seed to the blocks of a small GPT."""

    def build(seed: int) -> list[torch.nn.Module]:
        torch.manual_seed(seed)
        head = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, vocabulary))
        return [Embedding(vocabulary), *(Block(WIDTH, NUM_HEADS) for _ in range(NUM_BLOCKS)), head]

    return build


@cache
def text() -> Task:
    """A character GPT on the source text of the standard library; the last tenth is held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:TEXT_FILES]
    source = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
    source = "".join(c for c in source if c.isascii())[:TEXT_LENGTH]
    characters = {c: i for i, c in enumerate(sorted(set(source)))}
    tokens = torch.tensor([characters[c] for c in source])
    split = len(tokens) * 9 // 10

    def windows(part: torch.Tensor, count: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(0, len(part) - CONTEXT - 1, (count, 1), generator=generator)
        rows = part[starts + torch.arange(CONTEXT + 1)]
        return rows[:, :-1], rows[:, 1:]

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield windows(tokens[:split], 4, generator)

    return Task(
        "text",
        decoder(len(characters)),
        batches,
        windows(tokens[split:], 512, torch.Generator().manual_seed(7)),
        lambda logits, y: functional.cross_entropy(logits.flatten(0, 1), y.flatten()),
        num_steps=2200,
        rates={"sgd": (0.025, 0.05, 0.1, 0.2), "adam": ADAM_HIGH, "adamw": ADAM_HIGH},
    )


@cache
def sorter() -> Task:
    """A small GPT reads digits and writes them sorted; only what it writes counts."""

    def draw(count: int, generator: torch.Generator) -> Batch:
        digits = torch.randint(0, NUM_DIGITS, (count, SORTED_LENGTH), generator=generator)
        whole = torch.cat([digits, digits.sort(dim=1).values], dim=1)
        return whole[:, :-1], whole[:, SORTED_LENGTH:]

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield draw(16, generator)

    def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        written = logits[:, -SORTED_LENGTH:].flatten(0, 1)
        return functional.cross_entropy(written, y.flatten(), label_smoothing=SMOOTHING)

    return Task(
        "sorter",
        decoder(NUM_DIGITS),
        batches,
        draw(512, torch.Generator().manual_seed(7)),
        loss,
        num_steps=1500,
        rates={"sgd": (0.03, 0.06, 0.12, 0.24), "adam": ADAM, "adamw": ADAM},
    )


@cache
def digits() -> Task:
    """The network of the demo on scikit-learn's digits; every third image is held out."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    classes = torch.tensor(data.target)
    held_out = torch.arange(len(classes)) % 3 == 0
    x, y = images[~held_out], classes[~held_out]

    def build(seed: int) -> list[torch.nn.Module]:
        torch.manual_seed(seed)
        nn = torch.nn
        return [
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.25), nn.Flatten()),
            nn.Linear(64 * 4 * 4, 128),
            nn.Sequential(nn.ReLU(), nn.Linear(128, 10)),
        ]

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(y), generator=generator)
            for rows in order[: len(y) // 32 * 32].view(-1, 32):
                yield x[rows], y[rows]

    return Task(
        "digits",
        build,
        batches,
        (images[held_out], classes[held_out]),
        lambda logits, y: functional.cross_entropy(logits, y, label_smoothing=SMOOTHING),
        num_steps=600,
        rates={"sgd": (0.01, 0.03, 0.1), "adam": ADAM, "adamw": ADAM},
    )


TASKS = {"digits": digits, "text": text, "sorter": sorter}
