"""Makes the exporter take registered submodules for single operators.

Each call of such a submodule becomes an operator of a library that lives as long as one capture.
The exporter needs its output's shapes: the model is run once on the example, and a size of an
output follows the size of the input that it equals.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ravnest.capture.diagnosis import first_lines
from ravnest.capture.example import Example, replace_tensors
from ravnest.capture.leaves import (
    LeafCall,
    LeafSpec,
    build_leaf,
    is_factory_name,
    result_tensors,
    state_of,
)
from ravnest.capture.rehearsing import rehearse
from ravnest.errors import CaptureError
from ravnest.plan.structure import Structure, flatten

_LIBRARY = "ravnest_leaves"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of a leaf on the example."""

    inputs: tuple[Shape, ...]
    outputs: tuple[tuple[Shape, torch.dtype], ...]
    output: Any


@dataclass(slots=True)
class LeafTable:
    """The leaves of a capture.

    Attributes:
        factories: factory by path of the submodule.
        calls: what each operator that the exporter saw stands for.
    """

    factories: Mapping[str, str]
    calls: dict[Any, LeafCall] = field(default_factory=dict)


def check_leaves(model: nn.Module, leaves: Mapping[str, str]) -> None:
    """Refuses paths and factories that cannot be meant.

    Raises:
        CaptureError: no such submodule, leaves within leaves, or a factory that does not build it.
    """
    modules = dict(model.named_modules())
    for path, factory in leaves.items():
        if not path or path not in modules:
            raise CaptureError(
                f"leaves names {path!r}, which is no submodule of {type(model).__name__}",
                hint="use the path that named_modules() gives, such as 'encoder.block'",
            )
        if any(other != path and other.startswith(f"{path}.") for other in leaves):
            raise CaptureError(f"leaves names submodules of {path!r} as well as itself")
        if not isinstance(factory, str) or not is_factory_name(factory):
            raise CaptureError(
                f"the factory of leaf {path!r} is {factory!r}",
                hint="write 'package.module:function', a function without arguments",
            )
        shapes = {n: tuple(t.shape) for n, t in state_of(modules[path]).items()}
        build_leaf(factory, shapes)


@contextmanager
def as_operators(model: nn.Module, example: Example, table: LeafTable) -> Iterator[None]:
    """While it is open, the model calls an operator in place of each registered submodule."""
    if not table.factories:
        yield
        return
    runs = _run_on_example(model, example, table.factories)
    replaced = [model.get_submodule(path) for path in table.factories]
    with torch.library._scoped_library(_LIBRARY, "FRAGMENT") as library:
        try:
            for path, module in zip(table.factories, replaced, strict=True):
                module.forward = _Tracer(library, path, module, runs[path], table)
            yield
        finally:
            for module in replaced:
                vars(module).pop("forward", None)


class _Tracer:
    """Stands for a leaf's forward while the exporter traces."""

    def __init__(
        self, library: Any, path: str, module: nn.Module, runs: Sequence[_Run], table: LeafTable
    ) -> None:
        self._library, self._path, self._module = library, path, module
        self._runs, self._table = runs, table
        self.__signature__ = inspect.signature(module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found, call = flatten((args, kwargs))
        tensors = [each for each in found if isinstance(each, torch.Tensor)]
        run = self._run_like(tensors)
        operator = self._define(self._spec(found, call), run)
        state = list(state_of(self._module).values())
        return replace_tensors(run.output, iter(operator(tensors, state)))

    def _spec(self, found: Sequence[Any], call: Structure) -> LeafSpec:
        indices: list[int | None] = []
        num_tensors = 0
        for each in found:
            is_tensor = isinstance(each, torch.Tensor)
            if not is_tensor and type(each) not in (bool, int, float, str, type(None)):
                raise CaptureError(
                    f"the leaf {self._path!r} is called with a {type(each).__name__}",
                    hint="a leaf may get tensors, fixed plain values and containers of them",
                )
            indices.append(num_tensors if is_tensor else None)
            num_tensors += is_tensor
        module = self._module
        return LeafSpec(
            path=self._path,
            factory=self._table.factories[self._path],
            parameters=tuple(n for n, _ in module.named_parameters(remove_duplicate=False)),
            buffers=tuple(n for n, _ in module.named_buffers(remove_duplicate=False)),
            training=tuple(name for name, each in module.named_modules() if each.training),
            call=call,
            call_leaves=tuple(indices),
            call_values=tuple(None if isinstance(e, torch.Tensor) else e for e in found),
        )

    def _run_like(self, tensors: Sequence[torch.Tensor]) -> _Run:
        """The call on the example that had these ranks."""
        ranks = [tensor.dim() for tensor in tensors]
        for run in self._runs:
            if [len(shape) for shape in run.inputs] == ranks:
                return run
        raise CaptureError(f"the leaf {self._path!r} is called otherwise than on the example")

    def _define(self, spec: LeafSpec, run: _Run) -> Any:
        """A new operator of the library; its fake results have the sizes that follow the inputs."""
        name = f"leaf_{len(self._table.calls)}"
        self._library.define(f"{name}(Tensor[] inputs, Tensor[] state) -> Tensor[]")

        def fake(inputs: list[torch.Tensor], state: list[torch.Tensor]) -> list[torch.Tensor]:
            device = next((t.device for t in (*inputs, *state)), torch.device("cpu"))
            return [
                torch.empty(_follow(shape, run.inputs, inputs), dtype=dtype, device=device)
                for shape, dtype in run.outputs
            ]

        torch.library.register_fake(f"{_LIBRARY}::{name}", fake, lib=self._library)
        operator = getattr(getattr(torch.ops, _LIBRARY), name).default
        module = self._module
        self._table.calls[operator] = LeafCall(spec, module)
        return operator


def _follow(shape: Shape, examples: Sequence[Shape], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The sizes of an output: those of the inputs they equal on the example, else fixed."""
    sizes: list[Any] = []
    for d, size in enumerate(shape):
        same = [
            given.shape[d]
            for example, given in zip(examples, inputs, strict=True)
            if d < len(example) and example[d] == size and (d == 0 or len(example) == len(shape))
        ]
        sizes.append(same[0] if same else size)
    return sizes


class _Recorder:
    """Hooks around a leaf that note its calls on the example."""

    def __init__(self, path: str) -> None:
        self.runs: list[_Run] = []
        self._path = path
        self._versions: list[int] = []

    def before(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook."""
        self._versions = [tensor._version for tensor in _tensors((args, kwargs))]

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook; refuses what an operator of a graph may not do."""
        given = _tensors((args, kwargs))
        if [tensor._version for tensor in given] != self._versions:
            raise CaptureError(
                f"the leaf {self._path!r} writes its input in place",
                hint="give it a copy: call it with x.clone()",
            )
        results = result_tensors(output, self._path)
        run = _Run(
            tuple(tuple(tensor.shape) for tensor in given),
            tuple((tuple(tensor.shape), tensor.dtype) for tensor in results),
            output,
        )
        self.runs.append(run)
        self._check_sizes(run, module, args, kwargs)

    def _check_sizes(self, run: _Run, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Calls the leaf with twice the batch: its results must be of the sizes foreseen."""
        given = _tensors((args, kwargs))
        batch = next((tensor.shape[0] for tensor in given if tensor.dim()), None)
        doubled = [torch.cat([t, t]) if t.dim() and t.shape[0] == batch else t for t in given]
        args, kwargs = replace_tensors((args, kwargs), iter(doubled))
        try:
            results = result_tensors(module.forward(*args, **kwargs), self._path)
        except Exception:  # it takes this batch only, as the model may
            return
        foreseen = [_follow(shape, run.inputs, doubled) for shape, _ in run.outputs]
        found = [list(tensor.shape) for tensor in results]
        if foreseen != found:
            raise CaptureError(
                f"the leaf {self._path!r} returns tensors of sizes {found} for twice the batch, "
                f"not {foreseen}: sizes must be those of its inputs or fixed",
                hint="keep what changes the sizes out of the leaf",
            )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in flatten(value)[0] if isinstance(each, torch.Tensor)]


def _run_on_example(
    model: nn.Module, example: Example, factories: Mapping[str, str]
) -> dict[str, list[_Run]]:
    """Calls of every leaf in one real pass, after which the buffers are as before."""
    recorders = {path: _Recorder(path) for path in factories}
    with ExitStack() as stack:
        for path, recorder in recorders.items():
            module = model.get_submodule(path)
            before = module.register_forward_pre_hook(recorder.before, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(recorder.after, with_kwargs=True).remove)
        try:
            rehearse(model, example)
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(
                f"{type(model).__name__} does not run on the example: "
                f"{type(error).__name__}: {first_lines(str(error))}",
                hint="leaves need one real pass on the example, to learn the sizes they return",
            ) from error
    return {path: recorder.runs for path, recorder in recorders.items()}
