"""What the original model computes for one batch, in both modes; the model stays as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ravnest.capture.caches import caches_off
from ravnest.capture.diagnosis import first_lines
from ravnest.capture.example import Example
from ravnest.capture.exporting import CapturedModel
from ravnest.errors import CaptureError
from ravnest.plan.structure import Structure, flatten
from ravnest.planning.checking.untouched import untouched
from ravnest.stage.randomness import set_seed

SEED = 20211
"""Of the random numbers both sides draw, and of the weights of their outputs."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one side computed.

    Attributes:
        outputs: leaves of the training pass, detached.
        evaluated: leaves of the evaluation pass.
        gradients: by stored name, of the trainable parameters; None or absent when there is none.
        buffers: by stored name, after the training pass.
        draws: state of the default generator after the training pass.
    """

    outputs: tuple[Any, ...]
    evaluated: tuple[Any, ...]
    gradients: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor]
    draws: torch.Tensor


@dataclass(frozen=True, slots=True)
class Reference:
    """What the original computed, and what the other side is to be run with.

    Attributes:
        cotangents: per output leaf the gradient to start from, None where there is none.
        structures: how the outputs nest, in training and in evaluation mode.
    """

    observed: Observed
    cotangents: tuple[torch.Tensor | None, ...]
    structures: tuple[Structure, Structure]


def observe(
    model: nn.Module, example: Example, captured: CapturedModel, device: torch.device
) -> Reference:
    """Runs the model once in each mode.

    Raises:
        CaptureError: the model itself fails.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    trained = {n: parameters[n] for n, each in captured.state.stored.items() if each.trainable}
    with untouched(model, device), caches_off(model), torch.enable_grad():
        if not model.training:
            model.train()
        leaves, structure = flatten(_call(model, example, "train"))
        draws = generator_state(device)
        cotangents = tuple(map(_cotangent, leaves))
        pairs = [(y, c) for y, c in zip(leaves, cotangents, strict=True) if c is not None]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [y for y, _ in pairs], list(trained.values()), [c for _, c in pairs], allow_unused=True
        )
        buffers = _buffers(model, captured)
        outputs = tuple(map(_detached, leaves))
    with ExitStack() as stack:
        for context in (untouched(model, device), caches_off(model), without_fused_attention()):
            stack.enter_context(context)
        stack.enter_context(torch.no_grad())
        model.eval()
        evaluated, evaluated_structure = flatten(_call(model, example, "eval"))
        kept = tuple(map(_detached, evaluated))
    gradients = dict(zip(trained, found, strict=True))
    return Reference(
        Observed(outputs, kept, gradients, buffers, draws),
        cotangents,
        (structure, evaluated_structure),
    )


def generator_state(device: torch.device) -> torch.Tensor:
    """State of the default generator that operators on a device draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def without_fused_attention() -> Iterator[None]:
    """Turns torch's fused inference attention off, which the captured graph does not have."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _call(model: nn.Module, example: Example, mode: str) -> Any:
    set_seed(
        SEED
    )  # what Python or numpy draws is baked into a graph, and must show as another number
    try:
        return example.call(model, [tensor.clone() for tensor in example.tensors])
    except Exception as error:
        raise CaptureError(
            f"the self-test cannot run {type(model).__name__} itself on the example in {mode} "
            f"mode: {first_lines(str(error))}",
            hint="check the values of the example (such as ids that are too large), "
            "or pass self_test=False",
        ) from error


def _cotangent(leaf: Any) -> torch.Tensor | None:
    """A weight between 0.5 and 1.5 per value, of a total size that does not depend on the shape."""
    if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad:
        return None
    generator = torch.Generator().manual_seed(SEED)
    weights = torch.rand(leaf.shape, generator=generator) + 0.5
    weights /= max(leaf.numel(), 1) ** 0.5
    return weights.to(leaf.device, leaf.dtype)


def _buffers(model: nn.Module, captured: CapturedModel) -> dict[str, torch.Tensor]:
    """The buffers as they are now, by stored name."""
    state = captured.state
    return {
        name: buffer.detach().clone()
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if name in state.constants or (name in state.stored and not state.stored[name].is_parameter)
    }


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
