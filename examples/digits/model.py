"""The network and its data: the same for one process and for a plan of providers."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

SEED = 42
EPOCHS = 16
BATCH_SIZE = 64
LEARNING_RATE = 2e-3


class DigitsCNN(torch.nn.Module):
    """Three convolutions with BatchNorm, then two linear layers with dropout; 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2d_1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.bn_1 = torch.nn.BatchNorm2d(16)
        self.conv2d_2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.bn_2 = torch.nn.BatchNorm2d(32)
        self.conv2d_3 = torch.nn.Conv2d(32, 64, 3, padding=1)
        self.bn_3 = torch.nn.BatchNorm2d(64)
        self.dropout = torch.nn.Dropout(0.25)
        self.dense_1 = torch.nn.Linear(64 * 4 * 4, 128)
        self.dense_2 = torch.nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, 10) of images (N, 1, 8, 8)."""
        x = torch.relu(self.bn_1(self.conv2d_1(x)))
        x = torch.relu(self.bn_2(self.conv2d_2(x)))
        x = torch.nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.bn_3(self.conv2d_3(x)))
        x = self.dropout(torch.flatten(x, 1))
        return self.dense_2(torch.relu(self.dense_1(x)))


def load_data(file: Path = Path("digits.safetensors")) -> tuple[DataLoader, DataLoader]:
    """Loaders of the training images (60 %, shuffled, seeded) and of the test images.

    Args:
        file: the data set; made from scikit-learn's when it is not there. Who finds it needs no
            scikit-learn, which takes 90 MB of memory in every process that imports it.
    """
    if not file.exists():
        make_data(file)
    data = load_file(file)
    order = torch.Generator().manual_seed(SEED)
    train = TensorDataset(data["train_x"], data["train_y"])
    test = TensorDataset(data["test_x"], data["test_y"])
    return (
        DataLoader(train, batch_size=BATCH_SIZE, shuffle=True, generator=order),
        DataLoader(test, batch_size=256),
    )


def make_data(file: Path) -> None:
    """Writes the data set, split in two; whoever reads meanwhile finds all of it or none."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    parts = train_test_split(
        *(images, torch.tensor(digits.target)),
        **{"test_size": 0.4, "random_state": SEED, "stratify": digits.target},
    )
    names = ("train_x", "test_x", "train_y", "test_y")
    own = file.with_suffix(f".{os.getpid()}")
    save_file({name: part.contiguous() for name, part in zip(names, parts, strict=True)}, own)
    own.replace(file)


def loss_fn(predictions: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy; `targets` is the whole batch (images, classes)."""
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def accuracy(model: torch.nn.Module, loader: DataLoader) -> float:
    """Share of correctly classified images, in 0 .. 1."""
    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    return correct / len(loader.dataset)
