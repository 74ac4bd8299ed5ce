"""A stage's graph of one mode as JSON data: operator names and arguments that are data.

An argument is null, true, false, a number, a string, a list, or an object with one member:
`{"node": name}`, `{"input": name}`, `{"state": name}`, `{"dtype": name}`, `{"device": "stage"}`,
`{"layout": name}`, `{"memory_format": name}`, `{"slice": [start, stop, step]}`, `{"float": "inf"}`
or `{"complex": [real, imaginary]}`. A node may say in which autocast regions it stands, outermost
first, by number and dtype: `"autocast": [[1, "bfloat16"], [2, null]]`, null for a disabled one. The
operator `leaf` runs a submodule that stayed code; `leaf` then says which.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from ravnest.capture import operators
from ravnest.capture.argument_kinds import fault
from ravnest.capture.diagnosis import origin
from ravnest.capture.dtypes import dtype_name, dtype_of
from ravnest.capture.leaf_json import leaf_from_data, leaf_to_data
from ravnest.capture.leaves import OPERATOR, LeafCall
from ravnest.capture.program import ProgramBuilder, StageProgram
from ravnest.capture.regions import (
    AUTOCAST_DTYPES,
    MAX_AUTOCASTS,
    Autocast,
    Autocasts,
    autocasts_of,
)
from ravnest.capture.signature_json import structure_from_data
from ravnest.capture.stages import StageGraph
from ravnest.capture.strict_json import Field
from ravnest.capture.values import ValueSpec
from ravnest.errors import CaptureError

MAX_NODES = 200_000
MAX_ITEMS = 100_000
MAX_DEPTH = 16

_LAYOUTS = {"strided": torch.strided}
_MEMORY_FORMATS = {
    name: getattr(torch, name)
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


def graph_to_data(stage: StageGraph) -> dict[str, Any]:
    """JSON data of one mode.

    Raises:
        CaptureError: a node has an operator or argument that is no data; names module and line.
    """
    nodes = []
    results: Any = ()
    for node in stage.graph.nodes:
        if node.op == "call_function":
            nodes.append(_node_to_data(node))
        elif node.op == "output":
            results = node.args[0]
    return {
        "inputs": [_spec_to_data(spec) for spec in stage.inputs],
        "outputs": [_spec_to_data(spec) for spec in stage.outputs],
        "nodes": nodes,
        "results": [_argument_to_data(result, stage.graph.output_node()) for result in results],
        "structure": stage.output_structure,
    }


def _node_to_data(node: fx.Node) -> dict[str, Any]:
    leaf = node.target if isinstance(node.target, LeafCall) else None
    name = operators.name_of(node.target) if leaf is None else OPERATOR
    if name is None:
        raise CaptureError(
            f"operator {node.target} is none that a provider runs{origin(node)}",
            hint="use another torch operator",
        )
    data: dict[str, Any] = {
        "name": node.name,
        "op": name,
        "args": [_argument_to_data(argument, node) for argument in node.args],
    }
    if leaf is not None:
        data["leaf"] = leaf_to_data(leaf.spec)
    if node.kwargs:
        data["kwargs"] = {k: _argument_to_data(v, node) for k, v in node.kwargs.items()}
    if "random_position" in node.meta:
        data["random"] = node.meta["random_position"]
    if autocasts := autocasts_of(node):
        data["autocast"] = [
            [each.number, each.dtype and dtype_name(each.dtype)] for each in autocasts
        ]
    return data


def _argument_to_data(value: Any, user: fx.Node) -> Any:
    match value:
        case fx.Node():
            kind = {"placeholder": "input", "get_attr": "state"}.get(value.op, "node")
            return {kind: value.name if kind == "node" else str(value.target)}
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case complex():
            return {"complex": [value.real, value.imag]}
        case list() | tuple():
            return [_argument_to_data(item, user) for item in value]
        case slice():
            return {
                "slice": [_argument_to_data(v, user) for v in (value.start, value.stop, value.step)]
            }
        case torch.dtype():
            return {"dtype": dtype_name(value)}
        case torch.device():
            return {"device": "stage"}
        case torch.layout() if value in _LAYOUTS.values():
            return {"layout": str(value).removeprefix("torch.")}
        case torch.memory_format():
            return {"memory_format": str(value).removeprefix("torch.")}
    raise CaptureError(
        f"operator {user.target} has an argument of type {type(value).__name__} that cannot be put "
        f"into a stage file{origin(user)}",
        hint="pass plain values and tensors to torch operators",
    )


def _spec_to_data(spec: ValueSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": None if spec.dtype is None else dtype_name(spec.dtype),
        "differentiable": spec.differentiable,
    }


def _specs_from_data(field: Field) -> tuple[ValueSpec, ...]:
    specs: list[ValueSpec] = []
    for item in field.items(MAX_ITEMS):
        item.members(("name", "dtype", "differentiable"))
        dtype = None if item["dtype"].value is None else dtype_of(item["dtype"])
        floating = dtype is not None and (dtype.is_floating_point or dtype.is_complex)
        differentiable = item["differentiable"].flag()
        if differentiable and not floating:
            item["differentiable"].fail("only floating tensors are differentiable")
        specs.append(ValueSpec(item["name"].text(), dtype, dtype is not None, differentiable))
    if len({spec.name for spec in specs}) != len(specs):
        field.fail("has a name twice")
    return tuple(specs)


def checked_program(
    field: Field,
    state: Mapping[str, tuple[int, ...]],
    device: torch.device,
    trusted: Collection[str] = (),
) -> Callable[[], StageProgram]:
    """Checks the program of one mode; what is returned compiles it, once all else is checked too.

    Args:
        field: data of `graph_to_data`, from a file nobody vouches for.
        state: shapes of the stage's tensors by name; others cannot be looked up.
        device: where factories make their tensors.
        trusted: factories of leaves that may be imported and called.

    Raises:
        PlanFileError: any part is malformed or not allowed.
    """
    field.members(("inputs", "outputs", "nodes", "results", "structure"))
    inputs, outputs = _specs_from_data(field["inputs"]), _specs_from_data(field["outputs"])
    builder = ProgramBuilder(tuple(state), inputs)
    reader = _ArgumentReader(builder, device)
    for item in field["nodes"].items(MAX_NODES):
        _read_node(item, builder, reader, state, trusted)
    results = [reader.read(item) for item in field["results"].items(MAX_ITEMS)]
    if len(results) != len(outputs):
        field["results"].fail(f"has {len(results)} values for {len(outputs)} outputs")
    structure = field["structure"]
    return functools.partial(
        builder.finish,
        tuple(results),
        outputs,
        None if structure.value is None else structure_from_data(structure, len(outputs)),
    )


def _read_node(
    field: Field,
    builder: ProgramBuilder,
    reader: _ArgumentReader,
    shapes: Mapping[str, tuple[int, ...]],
    trusted: Collection[str],
) -> None:
    field.members(("name", "op", "args"), ("kwargs", "random", "autocast", "leaf"))
    name = field["name"].text()
    target: Any
    if field["op"].text() == OPERATOR and "leaf" in field.value:
        target = leaf_from_data(field["leaf"], field["args"], shapes, trusted)
    else:
        target = operators.find(field["op"].text())
    if target is None:
        field["op"].fail(f"operator {field.value['op']!r} is not allowed")
    args = tuple(reader.read(item) for item in field["args"].items(MAX_ITEMS))
    kwargs: dict[str, Any] = {}
    if "kwargs" in field.value:
        given = field["kwargs"]
        given.members((), given.value if isinstance(given.value, dict) else ())
        kwargs = {key: reader.read(given[key]) for key in given.value}
    _check_call(field, target, args, kwargs)
    position = field["random"].integer() if "random" in field.value else None
    autocasts = _read_autocasts(field["autocast"]) if "autocast" in field.value else ()
    if not builder.add(name, target, args, kwargs, position, autocasts):
        field["name"].fail(f"name {name!r} is used twice")


def _read_autocasts(field: Field) -> Autocasts:
    found: list[Autocast] = []
    for item in field.items(MAX_AUTOCASTS):
        parts = list(item.items(2))
        if len(parts) != 2:
            item.fail("expected a number and a dtype")
        number, name = parts
        dtype = None if name.value is None else dtype_of(name)
        if dtype is not None and dtype not in AUTOCAST_DTYPES:
            name.fail(f"{name.value!r} is no dtype to compute in; expected bfloat16 or float16")
        found.append(Autocast(number.integer(high=MAX_NODES), dtype))
    return tuple(found)


def _check_call(
    field: Field, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Argument names become source text of the program, so only the schema's own pass."""
    if not isinstance(target, torch._ops.OpOverload):
        if kwargs:
            field["kwargs"].fail("this operator takes none")
        try:
            inspect.signature(target).bind(*args)
        except TypeError as error:
            field["args"].fail(str(error))
        return
    declared = target._schema.arguments
    if len(args) > len(declared):
        field["args"].fail(f"has {len(args)} arguments, {target} takes {len(declared)}")
    names = {argument.name for argument in declared[len(args) :]}
    if unknown := sorted(kwargs.keys() - names):
        field["kwargs"].fail(f"{target} does not take {unknown}")
    if wrong := fault(target, args, kwargs):
        field["args"].fail(wrong)


class _ArgumentReader:
    """Turns JSON data into arguments, checking every kind and reference."""

    def __init__(self, builder: ProgramBuilder, device: torch.device) -> None:
        self._builder = builder
        self._device = device

    def read(self, field: Field, depth: int = 0) -> Any:
        """The argument of one field; PlanFileError when it is malformed."""
        value = field.value
        if depth > MAX_DEPTH:
            field.fail(f"is nested deeper than {MAX_DEPTH}")
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            return field.integer(low=-(2**63))
        if isinstance(value, str):
            return field.text()
        if isinstance(value, list):
            return [self.read(item, depth + 1) for item in field.items(MAX_ITEMS)]
        if not isinstance(value, dict) or len(value) != 1:
            field.fail("expected an argument")
        (kind,) = value
        return self._read_tagged(field[kind], kind, depth)

    def _read_tagged(self, field: Field, kind: str, depth: int) -> Any:
        match kind:
            case "node" | "input" | "state":
                found = self._builder.find(kind, field.text())
                if found is None:
                    field.fail(f"there is no {kind} {field.value!r} here")
                return found
            case "dtype":
                return dtype_of(field)
            case "device" if field.value == "stage":
                return self._device
            case "layout" if field.text() in _LAYOUTS:
                return _LAYOUTS[field.value]
            case "memory_format" if field.text() in _MEMORY_FORMATS:
                return _MEMORY_FORMATS[field.value]
            case "float" if field.text() in ("inf", "-inf", "nan"):
                return float(field.value)
            case "slice":
                parts = [self.read(item, depth + 1) for item in field.items(3)]
                if len(parts) == 3:
                    return slice(*parts)
            case "complex":
                numbers = [item.value for item in field.items(2)]
                if len(numbers) == 2 and all(type(n) in (int, float) for n in numbers):
                    return complex(*numbers)
        return field.fail(f"{kind!r} with {str(field.value)[:80]!r} is no argument")
