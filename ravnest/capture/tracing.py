"""Runs torch.export on a model without leaving a trace on it.

The model is exported inside a wrapper that takes and returns flat tensors, so that any nesting of
inputs and outputs is ours to describe, needs no registration, and plain values never become inputs.
"""

from __future__ import annotations

import io
import logging
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ravnest.capture.diagnosis import Attempt, explain, first_lines, leaf_hint
from ravnest.capture.example import Example
from ravnest.capture.leaves import LeafCall
from ravnest.capture.recurrence import rolled_recurrence
from ravnest.capture.rehearsing import refuse_misfit
from ravnest.capture.scopes import kept_flat
from ravnest.capture.tracing_leaves import LeafTable, as_operators
from ravnest.capture.watching import Sightings, watched
from ravnest.errors import CaptureError
from ravnest.plan.structure import Structure, flatten

logger = logging.getLogger(__name__)

_ATTRIBUTE = re.compile(r"self\.model\.([\w.\[\]]+)")

PREFIX = "model."
"""Front of every state name in an exported program: the wrapper's attribute for the model."""


@dataclass(slots=True)
class _Nesting:
    """The output's structure; apart from the module, whose attributes the exporter puts back."""

    structure: Structure = 0


class _FlatModel(nn.Module):
    """Takes the example's tensors and returns the output's leaves; notes how they were nested."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__()
        self.model = model
        self.nesting = _Nesting()
        self.example = example

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        leaves, self.nesting.structure = flatten(self.example.call(self.model, tensors))
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, _OUTPUT_TYPES) and leaf is not None:
                raise CaptureError(
                    f"output {index} of {type(self.model).__name__} is a {type(leaf).__name__}, "
                    "expected tensors, plain values and containers of them",
                    hint=(
                        "leave use_cache=True out of the example"
                        if self.example.supplied.get("use_cache") is True
                        else "return tensors only; for transformers set config.use_cache = False"
                    ),
                )
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise CaptureError(
                f"{type(self.model).__name__} returns no tensor", hint="return at least one tensor"
            )
        return tuple(leaves)


_OUTPUT_TYPES = (
    *(torch.Tensor, bool, int, float, str),
    *(torch.SymInt, torch.SymFloat, torch.SymBool),
)


@dataclass(frozen=True, slots=True)
class Traced:
    """An exported program.

    Attributes:
        program: as the exporter gave it.
        structure: how the outputs nest.
        leaves: submodules that stayed code, by the operator that stands for each of their calls.
        batch_is_open: the first sizes may vary, although the program has them fixed.
    """

    program: ExportedProgram
    structure: Structure
    leaves: Mapping[Any, LeafCall]
    batch_is_open: bool = False


def _refuse_lost(seen: Sightings, model: nn.Module) -> None:
    """Raises for what the exporter drops without a word."""
    if seen.functions:
        function, place = seen.functions[0]
        reentrant = "CheckpointFunction" in function
        raise CaptureError(
            f"{type(model).__name__} uses the custom autograd function {function}{place}, "
            "whose backward a captured graph would silently replace",
            hint="pass use_reentrant=False to torch.utils.checkpoint"
            if reentrant
            else "write it with ordinary torch operators, whose gradients autograd knows"
            + leaf_hint(place),
        )
    if seen.hooks:
        raise CaptureError(
            f"{type(model).__name__}.forward registers a gradient hook on a tensor{seen.hooks[0]}, "
            "which a captured graph would silently drop",
            hint=f"remove the call of register_hook from forward{leaf_hint(seen.hooks[0])}",
        )


# How many sizes of each input may vary, and what that is called.
_SIZES = {None: "with every size open", 1: "with only the batch size open", 0: "with fixed sizes"}


def trace(
    model: nn.Module,
    example: Example,
    leaves: Mapping[str, str] | None = None,
    *,
    training: bool,
    num_open: Sequence[int | None] = (None, 1, 0),
) -> Traced:
    """Exports one mode, with every size dynamic where possible.

    Args:
        model: its flags, state and attributes are afterwards as before.
        example: sizes to trace with.
        leaves: factory by path of the submodules that stay code.
        num_open: how many sizes of each input may vary (None for all), in the order to be tried.
        training: train mode (flags as the user left them if the model is in train mode) or eval.

    Raises:
        CaptureError: the model cannot be exported, or would be captured wrongly.
    """
    mode = "train" if training else "eval"
    with ExitStack() as stack:
        stack.enter_context(_restored(model))
        stack.enter_context(_quiet(report=training))
        if not training:
            model.eval()
        elif not model.training:
            model.train()
        table = LeafTable(leaves or {})
        stack.enter_context(as_operators(model, example, table))
        stack.enter_context(rolled_recurrence())
        seen = stack.enter_context(watched(model))
        stack.enter_context(kept_flat())
        stack.enter_context(torch.enable_grad())
        traced = _export(_FlatModel(model, example), mode, table, num_open)
    _refuse_lost(seen, model)
    return traced


def _export(
    flat: _FlatModel, mode: str, table: LeafTable, num_open: Sequence[int | None]
) -> Traced:
    """Exports with as many sizes dynamic as possible, of the given choices."""
    attempts: list[Attempt] = []
    tensors = flat.example.tensors
    for dims in num_open:
        try:
            shapes = (tuple(_dynamic(tensor, dims, tensors) for tensor in tensors),)
            with _without_partial_graph():
                program = torch.export.export(
                    flat, tuple(tensors), dynamic_shapes=shapes, strict=False
                )
        except CaptureError:
            raise
        except Exception as error:
            attempts.append(
                Attempt(_SIZES[dims], first_lines(str(error), 120) or type(error).__name__)
            )
            data_dependent = isinstance(error, GuardOnDataDependentSymNode)
            if dims == num_open[-1] or data_dependent:
                if not (data_dependent or table.factories):
                    refuse_misfit(flat.model, flat.example)
                raise explain(error, flat.model, mode, attempts) from error
            continue
        if dims == 0 and len(num_open) > 1:
            logger.warning(
                "%s was captured in %s mode for exactly the example's shapes: "
                "a batch of another size, also a partial last one, will be refused",
                *(type(flat.model).__name__, mode),
            )
        return Traced(program, flat.nesting.structure, table.calls)
    raise AssertionError("the last attempt returns or raises")


def same_operators(one: Traced, other: Traced) -> bool:
    """Whether two exports call the same operators with the same fixed arguments and constants."""

    def listed(traced: Traced) -> list[Any]:
        return [
            (node.op, str(node.target), str(node.args), str(node.kwargs))
            for node in traced.program.graph.nodes
        ]

    constants, others = one.program.constants, other.program.constants
    return (
        listed(one) == listed(other)
        and constants.keys() == others.keys()
        and all(torch.equal(constants[name], others[name]) for name in constants)
    )


def _dynamic(
    tensor: torch.Tensor, dims: int | None, tensors: Sequence[torch.Tensor]
) -> dict[int, Any]:
    """Which sizes of an input may vary: all when `dims` is None, but of images only the batch.

    Open heights and widths cost windowed models minutes of symbolic arithmetic (a small Swin: 5
    minutes, against 7 s). A size past the first that another input has too is a sequence's.
    """
    if dims is None and tensor.dim() >= 4 and tensor.is_floating_point():
        elsewhere = {s for other in tensors if other is not tensor for s in other.shape[1:]}
        dims = None if elsewhere.intersection(tensor.shape[1:]) else 1
    return dict.fromkeys(range(tensor.dim() if dims is None else min(dims, tensor.dim())), Dim.AUTO)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Puts plain attributes (training flags among them) and random generators back afterwards.

    Tensors need no care: the exporter works on fake ones.
    """
    plain = (bool, int, float, str, type(None))
    before = [
        (module, {k: v for k, v in vars(module).items() if type(v) in plain})
        for module in model.modules()
    ]
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        for module, attributes in before:
            vars(module).update(attributes)


@contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Keeps off the error stream the graph that a failing export prints; all else goes there."""
    said, partial = io.StringIO(), ""
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        partial = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        text = said.getvalue()
        if partial:
            text = text.replace(f"{partial}\n", "")
        sys.stderr.write(text)


@contextmanager
def _quiet(*, report: bool) -> Iterator[None]:
    """Keeps the exporter's own chatter out; passes on what it says about lost attributes."""
    names = ("torch.fx.experimental", "torch.export", "torch._export", "torch._subclasses")
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)
    told = [str(w.message) for w in caught if "assigned during export" in str(w.message)]
    found = {name for text in told for name in _ATTRIBUTE.findall(text)}
    lost = sorted(name for name in found if "_flat_weights[" not in name)  # an RNN's own cache
    if report and lost:
        logger.warning(
            "forward assigns the attributes %s, a captured graph will not; nothing is lost unless "
            "a later forward reads them (then make them buffers with register_buffer)",
            ", ".join(lost),
        )
