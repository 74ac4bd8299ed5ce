"""Stages one after another in one process, each in the engine that a provider runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.zoo.exchange import projection_loss
from ravnest.capture.stage_file import LoadedStage, load_stage
from ravnest.plan.identity import MicrobatchId
from ravnest.plan.structure import unflatten
from ravnest.stage.engine import StageEngine
from ravnest.stage.randomness import KeyedRandomness
from ravnest.stage.state import StageState
from ravnest.stage.updating import UpdateSettings

MICROBATCH = MicrobatchId(0, 0)
DRAW_SEED = 5
CPU = torch.device("cpu")
TRUSTED = ("benchmarks.zoo.trusted:clip",)


class SequentialRandomness(KeyedRandomness):
    """Draws from the process's generator in order, as the original model does."""

    @contextmanager
    def microbatch(self, microbatch: MicrobatchId) -> Iterator[Callable[[int], None]]:
        """Seeds no operator."""
        yield lambda position: None


def load_chain(folder: Path) -> list[LoadedStage]:
    """The stages below a folder, in order."""
    folders = sorted(folder.iterdir(), key=lambda each: int(each.name))
    return [load_stage(each, trusted=TRUSTED) for each in folders]


def engines_of(stages: Sequence[LoadedStage], *, keyed: bool) -> list[StageEngine]:
    """Fresh engines whose buffers are their own.

    Args:
        stages: in order.
        keyed: seed every random operator as providers do, else none.
    """
    kind = KeyedRandomness if keyed else SequentialRandomness
    return [
        StageEngine(
            stage.train,
            stage.eval,
            StageState(
                stage.parameters,
                stage.trainable,
                {name: tensor.clone() for name, tensor in stage.buffers.items()},
                {name: tensor.clone() for name, tensor in stage.constants.items()},
                stage.replicas,
            ),
            device=CPU,
            randomness=kind(0, 0, CPU),
            settings=UpdateSettings(),
        )
        for stage in stages
    ]


def train_pass(
    engines: Sequence[StageEngine], values: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Forward and backward over all stages.

    Returns:
        The model's outputs by name, and what the first stage's backward returned.
    """
    outputs: dict[str, Any] = {}

    def loss_function(results: Mapping[str, Any]) -> torch.Tensor:
        outputs.update(results)
        return projection_loss(results)

    for engine in engines[:-1]:
        values = engine.forward(MICROBATCH, values)
    engines[-1].forward(MICROBATCH, values, loss_function)
    gradients = engines[-1].backward(MICROBATCH)
    for engine in reversed(engines[:-1]):
        gradients = engine.backward(MICROBATCH, gradients)
    return outputs, gradients


def run_chain(stages: Sequence[LoadedStage], call: Any, *, keyed: bool) -> dict[str, Any]:
    """One pass in each mode from the same state: outputs, gradients and buffers by name.

    Args:
        stages: in order.
        call: positional and keyword inputs.
        keyed: seed every random operator as providers do; else draw in order from `DRAW_SEED`.
    """
    args, kwargs = call
    assert stages[0].signature is not None
    values = stages[0].signature.bind(args, kwargs)
    evaluated: Mapping[str, Any] = values
    torch.manual_seed(DRAW_SEED)
    for engine in engines_of(stages, keyed=keyed):
        evaluated = engine.evaluate(MICROBATCH, evaluated)
    engines = engines_of(stages, keyed=keyed)
    torch.manual_seed(DRAW_SEED)
    outputs, _ = train_pass(engines, values)
    gradients: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for engine in engines:
        others = dict(engine.module.named_buffers())
        for name, tensor in (*engine.module.named_parameters(), *others.items()):
            if tensor.grad is not None:  # a tied parameter has a share on every stage it is on
                known = gradients.get(name)
                gradients[name] = tensor.grad if known is None else known + tensor.grad
        buffers |= others
    persistent = {name for stage in stages for name in stage.buffers}
    return {
        "output": _nested(stages[-1].train.output_structure, outputs),
        "eval output": _nested(stages[-1].eval.output_structure, evaluated),
        "gradients": dict(sorted(gradients.items())),
        "buffers": {name: buffers[name] for name in sorted(persistent)},
    }


def _nested(structure: Any, values: Mapping[str, Any]) -> Any:
    return unflatten(structure, list(values.values()))
