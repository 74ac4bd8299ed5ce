"""Finds the entries of the zoo; each file of models is imported only when one of its rows runs."""

from __future__ import annotations

import importlib

from benchmarks.zoo.entry import Entry

ROWS: dict[str, tuple[str, ...]] = {
    "benchmarks.zoo.plain": (
        "MLP",
        "CNN with BatchNorm and dropout",
        "U-Net",
        "LSTM",
        "GRU",
    ),
    "benchmarks.zoo.vision": (
        "torchvision ResNet-50",
        "torchvision Inception-V3",
        "torchvision ViT-B/16",
        "torchvision ConvNeXt",
    ),
    "benchmarks.zoo.language": (
        "TransformerEncoder with padding mask",
        "GPT with tied embedding",
        "GPT with the loss inside",
        "GPT in bfloat16",
        "mixture of experts, sparse",
        "mixture of experts, dense",
    ),
    "benchmarks.zoo.hub": (
        "transformers GPT-2",
        "transformers Llama",
        "transformers BERT for pretraining",
        "transformers T5",
        "transformers Mixtral",
        "transformers Qwen2",
        "transformers Gemma2",
        "transformers Whisper",
        "transformers ViT",
        "transformers DistilBERT with labels",
    ),
    "benchmarks.zoo.special": (
        "buffers updated in forward",
        "custom autograd.Function",
        "nested dict input and output",
        "autocast region",
        "no_grad region",
        "torch.utils.checkpoint",
        "frozen backbone",
        "ScriptModule, scripted",
        "ScriptModule, traced",
    ),
}
"""Row names by module, so that listing them needs no library."""

QUICK = (
    "MLP",
    "CNN with BatchNorm and dropout",
    "buffers updated in forward",
    "nested dict input and output",
)
"""Cheap rows of torch alone."""


def all_names() -> list[str]:
    """Every row, in the order of the report."""
    return [name for names in ROWS.values() for name in names]


def find(name: str) -> Entry:
    """The entry of a row; ImportError when its library is missing, KeyError when unknown."""
    module = next((module for module, names in ROWS.items() if name in names), None)
    if module is None:
        raise KeyError(f"no row {name!r}; there are {all_names()}")
    entries: tuple[Entry, ...] = importlib.import_module(module).ENTRIES
    return next(entry for entry in entries if entry.name == name)
