"""The self-test: the original model beside the chain of stages that was just written.

Compares, for the example batch: outputs, gradients of all parameters, and buffers after a training
pass; outputs in evaluation mode. Gradients are those of a fixed random combination of all floating
outputs, so that no loss needs to be known and errors do not cancel out as they could in a mean.

Dropout is compared, not switched off: both sides start from one seed of the default generator and
draw from it in order, for the stages run one after another in the order of the captured graph. A
mask that is lost, doubled or swapped by cutting shows up as a wrong output. (The keyed seeds of a
real run would say nothing about the original, which does not know them.)

What it cannot see: other batch sizes than the example's, choices that the example does not take,
and torch's fused inference attention, which is off during the test since it writes other values at
padded positions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ravnest.capture.diagnosis import first_lines
from ravnest.capture.example import take_example, tile_single
from ravnest.capture.exporting import CapturedModel
from ravnest.capture.stage_file import LoadedStage, load_stage
from ravnest.errors import CaptureError
from ravnest.plan.structure import Structure
from ravnest.planning.checking.available import available_memory_bytes
from ravnest.planning.checking.chain import TrainingPass, evaluate
from ravnest.planning.checking.comparing import Comparison, compare, tolerance_of, worst
from ravnest.planning.checking.reference import (
    SEED,
    Observed,
    generator_state,
    observe,
    without_fused_attention,
)
from ravnest.planning.checking.untouched import untouched
from ravnest.planning.clustering.shortage import format_bytes
from ravnest.planning.streaming import StreamedWeights

_log = logging.getLogger(__name__)

_COPIES = 4  # of the state: to put back, the stages' own, and the gradients of both sides
_HINT = (
    "please report this model, with its example; self_test=False writes the plan all the same, "
    "at your own risk: training would compute something else than the model"
)


def prepare_test(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    captured: CapturedModel,
    streamed: StreamedWeights | None = None,
    *,
    trusted: Collection[str] = (),
) -> SelfTest | None:
    """The test of a captured model, or None, with a line in the log, where it is not possible.

    Args:
        model: with args and kwargs as `SelfTest` takes them.
        streamed: where the stages get other weights from than the model's.
        trusted: factories of leaves, which run here as on a provider that trusts them.

    Raises:
        CaptureError: the model itself fails on the example.
    """
    if streamed is not None:
        reason: str | None = "its weights are streamed"
    elif isinstance(model, torch.jit.ScriptModule):
        reason = "its conversion was compared with the script when it was captured"
    else:
        reason = skip_reason(captured)
    if reason is not None:
        _log.info("no self-test of %s: %s", captured.model_name, reason)
        return None
    return SelfTest(model, args, kwargs, captured, trusted)


def skip_reason(captured: CapturedModel) -> str | None:
    """Why the model cannot be tested on this machine, or None when it can."""
    used = (*captured.state.stored.values(), *captured.state.constants.values())
    if any(each.tensor.is_meta for each in used):
        return "its tensors are on the meta device"
    devices = sorted({str(each.tensor.device) for each in captured.state.stored.values()})
    if len(devices) > 1:
        return f"its tensors are on several devices: {', '.join(devices)}"
    needed = _COPIES * sum(each.num_bytes for each in used) + 2 * sum(captured.costs.saved_bytes)
    available = available_memory_bytes(torch.device(devices[0]))
    if available is not None and needed > available:
        return f"it needs {format_bytes(needed)} of memory, {format_bytes(available)} are free"
    return None


class SelfTest:
    """Holds what the original computes, and compares chains of stages with it.

    Args:
        model: the original; afterwards as before, `.grad` and the random generators included.
        args: positional inputs of the example.
        kwargs: keyword inputs of the example.
        captured: what was captured of it with this example.
        trusted: factories of leaves that may be built.

    Raises:
        CaptureError: the model itself fails on the example.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        captured: CapturedModel,
        trusted: Collection[str] = (),
    ) -> None:
        self._model, self._captured, self._trusted = model, captured, trusted
        self._call = (args, kwargs)
        self._example = tile_single(take_example(model, args, kwargs))
        self._device = next(iter(captured.state.stored.values())).tensor.device
        self._reference = observe(model, self._example, captured, self._device)
        self._tolerance = tolerance_of(_dtypes(captured))

    def check(self, folders: Sequence[Path]) -> None:
        """Loads the stages of one chain and compares them with the original.

        Args:
            folders: of the stages, from root to leaf.

        Raises:
            CaptureError: they compute something else; names the tensor that is furthest off.
        """
        what = f"{self._captured.model_name} in {len(folders)} stages"
        try:
            stages = [load_stage(folder, self._device, self._trusted) for folder in folders]
            observed = self._observe(stages)
        except Exception as error:
            raise CaptureError(
                f"the self-test failed, nothing was written: {what} cannot be run on the example: "
                f"{type(error).__name__}: {first_lines(str(error))}",
                hint=_HINT,
            ) from error
        comparisons = self._compare(stages[-1], observed)
        wrong = [each.differences for each in comparisons if each.differences]
        if wrong:
            first = worst(wrong[0])  # what comes later is off because of it
            raise CaptureError(
                f"the self-test failed, nothing was written: {what} differs from the model: "
                f"{first.what} by {first.largest:.3g}, where at most {first.allowed:.3g} was "
                f"expected, and so do {sum(map(len, wrong))} of "
                f"{sum(each.num_tensors for each in comparisons)} tensors{self._note(observed)}",
                hint=_HINT,
            )
        share = max(each.largest_share for each in comparisons)
        _log.info("self-test: %s equals the model (%.2g of what is tolerated)", what, share)

    def _observe(self, stages: Sequence[LoadedStage]) -> Observed:
        signature = stages[0].signature
        assert signature is not None
        signature.bind(*self._call)  # a call must be accepted as the example was given
        names = [leaf.name for leaf in signature.tensors]

        def inputs() -> dict[str, torch.Tensor]:
            return {n: t.clone() for n, t in zip(names, self._example.tensors, strict=True)}

        with untouched(nn.Module(), self._device):
            torch.manual_seed(SEED)
            training = TrainingPass(stages, inputs())
            draws = generator_state(self._device)
            gradients = training.backward(self._reference.cotangents)
            torch.manual_seed(SEED)
            with without_fused_attention():
                evaluated = evaluate(stages, inputs())
        return Observed(
            tuple(training.outputs), tuple(evaluated), gradients, training.buffers, draws
        )

    def _compare(self, leaf: LoadedStage, observed: Observed) -> Sequence[Comparison]:
        expected = self._reference.observed
        structures = (leaf.train.output_structure, leaf.eval.output_structure)
        for mode, own, other in zip(
            ("train", "eval"), self._reference.structures, structures, strict=True
        ):
            if own != other:
                raise CaptureError(
                    f"the self-test failed, nothing was written: outputs nest as {other} in {mode} "
                    f"mode, those of the model as {own}",
                    hint=_HINT,
                )
        names, evaluated = map(_names, self._reference.structures)
        buffers = {
            name: buffer  # a non-persistent one that no graph uses is on no stage
            for name, buffer in expected.buffers.items()
            if name in observed.buffers or name in self._captured.state.stored
        }
        rows = (
            ("output", _named(names, expected.outputs), _named(names, observed.outputs)),
            ("buffer after a training pass", buffers, observed.buffers),
            ("gradient of", expected.gradients, observed.gradients),
            (
                "output in eval mode",
                _named(evaluated, expected.evaluated),
                _named(evaluated, observed.evaluated),
            ),
        )
        return [compare(kind, own, other, self._tolerance) for kind, own, other in rows]

    def _note(self, observed: Observed) -> str:
        if torch.equal(observed.draws, self._reference.observed.draws):
            return ""
        return (
            ". The model draws other random numbers than the stages: an operator whose result it "
            "does not use, or a choice by a random number"
        )


def _dtypes(captured: CapturedModel) -> set[torch.dtype]:
    """All dtypes that either mode computes with."""
    found = {each.tensor.dtype for each in captured.state.stored.values()}
    for mode in (captured.train, captured.eval):
        values = [node.meta.get("val") for node in mode.graph.nodes]
        found |= {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return found


def _names(structure: Structure, path: str = "") -> list[str]:
    """Where each leaf of an output stands, like `logits` or `hidden.1`."""
    if isinstance(structure, int):
        return [path]
    ((kind, children),) = structure.items()
    pairs = children if kind in ("dict", "record") else list(enumerate(children))
    return [n for key, child in pairs for n in _names(child, f"{path}.{key}" if path else str(key))]


def _named(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, leaves, strict=True))
