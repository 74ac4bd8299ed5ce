"""The options of clusterize that a what-if can change: how their values are written."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ravnest.stage.schedule import Schedule

_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Option:
    """How the value of an option is written.

    Attributes:
        parse: from what is written to what clusterize takes; raises ValueError.
        expected: what may be written, in words.
        example: for help.
    """

    parse: Callable[[str], Any]
    expected: str
    example: str


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise ValueError
    return int(text)


def _count_or_auto(text: str) -> int | None:
    return None if text == "auto" else _count(text)


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _schedule(text: str) -> str:
    if text not in list(Schedule):
        raise ValueError
    return text


def _compression(text: str) -> str | bool:
    # Needs torch, which help must not wait for.
    from ravnest.wire.compression import AUTO, COMPRESSIONS

    names = ["none", *(name for name in COMPRESSIONS if isinstance(name, str)), AUTO]
    if text not in names:
        raise ValueError(f"there are {', '.join(names)}")
    return False if text == "none" else text


def _optimizer(text: str) -> type:
    import torch

    classes = {
        name: value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    }
    if text not in classes:
        near = difflib.get_close_matches(text, classes, n=1, cutoff=0.4)
        raise ValueError(f"did you mean {near[0]!r}?" if near else "")
    return classes[text]


OPTIONS = {
    "num_clusters": Option(_count_or_auto, "a whole number from 1 on, or auto", "2"),
    "schedule": Option(_schedule, " or ".join(Schedule), "async"),
    "update_frequency": Option(_count, "a whole number from 1 on", "16"),
    "reduce_factor": Option(_count, "a whole number from 1 on", "50"),
    "compression": Option(_compression, "a name of docs/settings.md, or none", "int8"),
    "recompute": Option(_switch, "true or false", "true"),
    "thorough": Option(_switch, "true or false", "true"),
    "optimizer": Option(_optimizer, "the name of a class of torch.optim", "SGD"),
}
"""By name."""
