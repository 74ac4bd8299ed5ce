"""A leaf of a graph as JSON data, and back: only factories that were trusted are ever imported."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ravnest.capture.leaves import LeafCall, LeafSpec, Plain, build_leaf, is_factory_name
from ravnest.capture.signature_json import structure_from_data
from ravnest.capture.strict_json import Field
from ravnest.errors import CaptureError, PlanFileError
from ravnest.plan.structure import unflatten

_MAX_ITEMS = 100_000
_NAMES = ("parameters", "buffers", "training")


def leaf_to_data(spec: LeafSpec) -> dict[str, Any]:
    """JSON data of a leaf.

    Raises:
        CaptureError: it is called with an infinite number.
    """
    if any(isinstance(v, float) and not math.isfinite(v) for v in spec.call_values):
        raise CaptureError(
            f"the leaf {spec.path!r} is called with an infinite number or NaN",
            hint="let the leaf make that number itself",
        )
    return {
        "path": spec.path,
        "factory": spec.factory,
        "parameters": list(spec.parameters),
        "buffers": list(spec.buffers),
        "training": list(spec.training),
        "call": spec.call,
        "call_leaves": [
            [index, value] for index, value in zip(spec.call_leaves, spec.call_values, strict=True)
        ],
    }


def leaf_from_data(
    field: Field, args: Field, shapes: Mapping[str, tuple[int, ...]], trusted: Collection[str]
) -> LeafCall:
    """Builds the submodule of a leaf.

    Args:
        field: data of `leaf_to_data`, from a file nobody vouches for.
        args: the node's arguments: a list of inputs, a list of state look-ups.
        shapes: of the stage's tensors.
        trusted: factories that the provider's operator allows to import and call.

    Raises:
        PlanFileError: it is malformed, or its factory is not trusted or builds something else.
    """
    field.members(("path", "factory", *_NAMES, "call", "call_leaves"))
    factory = field["factory"].text()
    if not is_factory_name(factory):
        field["factory"].fail(f"{factory!r} does not have the form package.module:function")
    path = field["path"].text()
    if factory not in trusted:
        raise PlanFileError(
            f"{field.file}: this stage runs code of the model's author, {factory!r} "
            f"for the submodule {path!r}, which this node was not told to trust",
            hint=f"install the package, and pass Node(..., trusted_modules=({factory!r},)) "
            "if you know and trust its code",
        )
    names = {each: tuple(item.text() for item in field[each].items(_MAX_ITEMS)) for each in _NAMES}
    num_inputs, state = _arguments(args)
    indices, values = _call_leaves(field["call_leaves"], num_inputs)
    spec = LeafSpec(
        path=path,
        factory=factory,
        **names,
        call=structure_from_data(field["call"], len(indices)),
        call_leaves=indices,
        call_values=values,
    )
    _check_call(field["call"], len(indices))
    own = (*spec.parameters, *spec.buffers)
    if len(own) != len(state) or any(name not in shapes for name in state):
        args.fail(f"has {len(state)} tensors of the stage for the {len(own)} of the leaf")
    wanted = {name: shapes[stored] for name, stored in zip(own, state, strict=True)}
    try:
        return LeafCall(spec, build_leaf(factory, wanted))
    except CaptureError as error:
        raise PlanFileError(f"{field.file}: {error.message}", hint=error.hint) from error


def _arguments(args: Field) -> tuple[int, list[str]]:
    parts = list(args.items(2))
    if len(parts) != 2:
        args.fail("expected a list of inputs and a list of state")
    inputs, state = parts
    names: list[str] = []
    for item in state.items(_MAX_ITEMS):
        item.members(("state",))
        names.append(item["state"].text())
    return len(list(inputs.items(_MAX_ITEMS))), names


def _call_leaves(field: Field, num_inputs: int) -> tuple[tuple[int | None, ...], tuple[Plain, ...]]:
    indices: list[int | None] = []
    values: list[Plain] = []
    for item in field.items(_MAX_ITEMS):
        pair = list(item.items(2))
        if len(pair) != 2:
            item.fail("expected an input's index and a value, one of them null")
        index, value = pair
        indices.append(None if index.value is None else index.integer(high=num_inputs - 1))
        if not isinstance(value.value, (bool, int, float, str, type(None))):
            value.fail("expected a plain value")
        values.append(value.value)
    return tuple(indices), tuple(values)


def _check_call(field: Field, num_leaves: int) -> None:
    call = unflatten(field.value, range(num_leaves))
    if (
        not isinstance(call, tuple)
        or len(call) != 2
        or not isinstance(call[0], tuple)
        or type(call[1]) is not dict
        or not all(isinstance(key, str) for key in call[1])
    ):
        field.fail("expected positional and keyword arguments")
