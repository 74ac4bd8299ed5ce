"""ScriptModules as ordinary modules: the same names and tensors, a forward that can be captured.

Torch converts the script of each mode to a graph; what it cannot convert (a loop, such as BatchNorm
in training has one) is run by the TorchScript interpreter while the exporter looks on. That bakes
in every size the script reads, so sizes are then open only as far as a second trace agrees. Either
way the module is compared with the script itself: output, gradients and buffers.
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._export import converter

from ravnest.capture.diagnosis import Attempt, first_lines, tried
from ravnest.errors import CaptureError
from ravnest.plan.structure import flatten

logger = logging.getLogger(__name__)

# Where operators that behave differently in training say so: position of the flag.
_FLAGS = {"aten::dropout": 2, "aten::feature_dropout": 2, "aten::batch_norm": 5}


class ScriptMirror(nn.Module):
    """A module with a script's parameters and buffers, as its own, under their names.

    Args:
        script: whose tensors are shared.
        interpreted: run the script in its interpreter instead of converting it.
    """

    def __init__(self, script: torch.jit.ScriptModule, *, interpreted: bool) -> None:
        super().__init__()
        self.interpreted = interpreted
        parameters: dict[int, nn.Parameter] = {}
        for name, tensor in script.named_parameters(remove_duplicate=False):
            own = nn.Parameter(tensor.detach(), tensor.requires_grad)
            self._put(name, parameters.setdefault(tensor.data_ptr(), own))
        for name, buffer in script.named_buffers(remove_duplicate=False):
            self._put(name, buffer)
        self.train(script.training)
        # A fresh copy has no plans of the just-in-time compiler, which call operators of their own.
        self.forward = _Forward(self, _reloaded(script) if interpreted else script, interpreted)

    @property
    def how(self) -> str:
        """The way it computes, for messages."""
        return "run by its interpreter" if self.interpreted else "converted to a graph"

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        module: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(last, tensor)
        else:
            module.register_buffer(last, tensor)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name; the exporter's stand-ins while it traces."""
        parameters = self.named_parameters(remove_duplicate=False)
        return {**dict(parameters), **dict(self.named_buffers(remove_duplicate=False))}


class _Forward:
    """A mirror's forward; has the signature of the script's."""

    def __init__(self, mirror: ScriptMirror, script: Any, interpreted: bool) -> None:
        self._tensors = mirror.tensors
        self._is_training: Callable[[], bool] = lambda: mirror.training
        self._script = script
        self._interpreted = interpreted
        self._graphs: dict[bool, fx.GraphModule] = {}
        self.__signature__ = _signature(script)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound: inspect.BoundArguments = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        training = self._is_training()
        if self._interpreted:
            script = self._script
            with _in_mode(script, training), _swapped(script, self._tensors()):
                return script(*bound.args, **bound.kwargs)
        if training not in self._graphs:
            with _in_mode(self._script, training):
                self._graphs[training] = _convert(self._script, bound.args)
        run = _Run(self._graphs[training], self._tensors())
        return run.run(*bound.arguments.values())


class _Run(fx.Interpreter):
    """Runs a converted graph with other tensors than its own."""

    def __init__(self, module: fx.GraphModule, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(module)
        self._own = tensors

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._own[target] if target in self._own else super().get_attr(target, args, kwargs)


def mirror_script(
    script: torch.jit.ScriptModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ScriptMirror:
    """A module that computes what a script computes on the example, in both modes.

    Raises:
        CaptureError: neither way gives one; names the parameters that would get no gradient.
    """
    attempts: list[Attempt] = []
    for interpreted, what in ((False, "converting it"), (True, "running its interpreter")):
        try:
            mirror = ScriptMirror(script, interpreted=interpreted)
            with torch.random.fork_rng(devices=[]):
                _compare(script, mirror, args, kwargs)
        except Exception as error:
            reason = error.message if isinstance(error, CaptureError) else _root(error)
            attempts.append(Attempt(what, first_lines(reason, 160)))
            continue
        _warn_of_mode(script)
        return mirror
    raise CaptureError(
        f"the ScriptModule {_name(script)} cannot be captured: {attempts[-1].reason}"
        f"{tried(attempts)}",
        hint="pass the Python model it was scripted or traced from",
    )


def _reloaded(script: Any) -> Any:
    file = io.BytesIO()
    file.write(script.save_to_buffer())
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(file)  # type: ignore[no-untyped-call]


def _root(error: BaseException) -> str:
    """The first cause, which the converter wraps once per block."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _name(script: Any) -> str:
    return str(getattr(script, "original_name", type(script).__name__))


def _signature(script: Any) -> inspect.Signature:
    """The parameters of a script's forward."""
    kinds = {True: inspect.Parameter.KEYWORD_ONLY, False: inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                kinds[each.kwarg_only],
                default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
            )
            for each in script.forward.schema.arguments[1:]
        ]
    )


def _convert(script: Any, args: tuple[Any, ...]) -> fx.GraphModule:
    """The script of its present mode as a graph."""
    found = converter.TS2EPConverter(script, args, {})
    blocks, names = converter.get_block_to_lifted_attrs(found.ts_graph)
    graph: fx.GraphModule = converter.TS2FXGraphConverter(
        found.ts_graph,
        found.name_to_param,
        found.name_to_buffer,
        blocks,
        found.name_to_non_tensor_attributes,
        found.name_to_constant,
        names,
    ).convert()
    return graph


@contextmanager
def _in_mode(script: Any, training: bool) -> Iterator[None]:
    """Sets the mode, flags as the user left them if that is the present one; puts it back."""
    before = [(module, module.training) for module in script.modules()]
    try:
        if script.training != training:
            script.train(training)
        yield
    finally:
        for module, flag in before:
            module.training = flag


@contextmanager
def _swapped(script: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Lets a script compute with other tensors."""
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, owner.getattr(name)))
        owner.setattr(name, value)

    try:
        by_address: dict[int, torch.Tensor] = {}
        for name, tensor in tensors.items():
            owner = script._c
            *path, last = name.split(".")
            for part in path:
                owner = owner.getattr(part)
            by_address[owner.getattr(last).data_ptr()] = tensor
            put(owner, last, tensor)
        for module in script.modules():
            if module._c.hasattr("_flat_weights"):  # an LSTM's second list of its parameters
                listed = module._c.getattr("_flat_weights")
                put(module._c, "_flat_weights", [by_address[each.data_ptr()] for each in listed])
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            yield
    finally:
        for owner, last, value in reversed(before):
            owner.setattr(last, value)


def _compare(
    script: Any, mirror: ScriptMirror, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raises CaptureError where a mirror and its script differ on the example."""
    if any(tensor.is_meta for tensor in mirror.tensors().values()):
        return
    shared = dict(script.named_buffers(remove_duplicate=False))
    buffers = {name: tensor.clone() for name, tensor in shared.items()}
    parameters = dict(script.named_parameters(remove_duplicate=False))
    own = dict(mirror.named_parameters(remove_duplicate=False))
    before = mirror.training
    for training in (True, False):
        found: list[dict[str, torch.Tensor]] = []
        for each, tensors in ((script, parameters), (mirror, own)):
            mirror.train(training)
            with _in_mode(script, training):
                found.append(_pass(each, tensors, shared, args, kwargs, training))
            for name, tensor in shared.items():
                tensor.copy_(buffers[name])
        mirror.train(before)
        _refuse_difference(found[0], found[1], "train" if training else "eval")


def _pass(
    module: Any,
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
) -> dict[str, torch.Tensor]:
    """Outputs, gradients and buffers of one pass, by name."""
    torch.manual_seed(0)
    with torch.enable_grad():
        leaves = flatten(module(*args, **kwargs))[0]
    found = {f"output {i}": t for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
    wanted = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
    losses = [t.float().square().mean() for t in found.values() if t.requires_grad]
    if training and losses and wanted:
        total = torch.stack(losses).sum()
        gradients = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        pairs = zip(wanted, gradients, strict=True)
        found |= {f"gradient of {name}": g for name, g in pairs if g is not None}
    found |= {f"buffer {name}": tensor.clone() for name, tensor in buffers.items()}
    return found


def _refuse_difference(
    script: Mapping[str, torch.Tensor], mirror: Mapping[str, torch.Tensor], mode: str
) -> None:
    if lost := sorted(script.keys() - mirror.keys()):
        raise CaptureError(f"lost in {mode} mode: {', '.join(lost)}")
    for name, tensor in script.items():
        if not torch.allclose(tensor, mirror[name], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise CaptureError(f"another {name} in {mode} mode")


def _warn_of_mode(script: Any) -> None:
    """Says so when the script was traced, so that its mode is fixed."""
    graph = script.inlined_graph
    flags = {
        node.inputsAt(_FLAGS[node.kind()]).toIValue()
        for node in graph.nodes()
        if node.kind() in _FLAGS
    }
    if flags & {True, False} and 'name="training"' not in str(graph):
        modes = " and ".join({True: "training", False: "evaluation"}[f] for f in flags)
        logger.warning(
            "the ScriptModule %s was traced in %s mode, which is fixed in it: dropout and "
            "BatchNorm behave so in training and in evaluation alike",
            *(_name(script), modes),
        )
