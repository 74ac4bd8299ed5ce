"""The input signature as JSON data, and strictly back."""

from __future__ import annotations

import math
from typing import Any

from ravnest.capture.dtypes import dtype_name, dtype_of
from ravnest.capture.guards import Expression, check
from ravnest.capture.signature import (
    Argument,
    ArgumentKind,
    ConstantLeaf,
    DynamicDim,
    InputSignature,
    Scalar,
    TensorLeaf,
)
from ravnest.capture.strict_json import Field
from ravnest.plan.structure import Structure, unflatten

_MAX_ITEMS = 100_000


def signature_to_data(signature: InputSignature) -> dict[str, Any]:
    """JSON data of a signature."""
    return {
        "arguments": [_argument_to_data(argument) for argument in signature.arguments],
        "leaves": [_leaf_to_data(leaf) for leaf in signature.leaves],
        "guards": [_as_lists(guard) for guard in signature.guards],
    }


def signature_from_data(field: Field) -> InputSignature:
    """The signature of JSON data.

    Raises:
        PlanFileError: it is malformed.
    """
    field.members(("arguments", "leaves", "guards"))
    leaves = tuple(_leaf_from_data(leaf) for leaf in field["leaves"].items(_MAX_ITEMS))
    arguments = tuple(
        _argument_from_data(argument, len(leaves))
        for argument in field["arguments"].items(_MAX_ITEMS)
    )
    symbols = frozenset(
        dim.symbol
        for leaf in leaves
        if isinstance(leaf, TensorLeaf)
        for dim in leaf.shape
        if isinstance(dim, DynamicDim)
    )
    guards = tuple(_guard(guard, symbols) for guard in field["guards"].items(_MAX_ITEMS))
    return InputSignature(arguments, leaves, guards)


def structure_from_data(field: Field, num_leaves: int) -> Structure:
    """A structure whose every leaf exists.

    Raises:
        PlanFileError: it is malformed.
    """
    try:
        unflatten(field.value, range(num_leaves))
    except (ValueError, TypeError) as error:
        field.fail(str(error))
    structure: Structure = field.value
    return structure


def _argument_to_data(argument: Argument) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": argument.name,
        "kind": str(argument.kind),
        "value": argument.value,
    }
    if argument.has_default:
        data["default"] = _scalar_to_data(argument.default)
    return data


def _argument_from_data(field: Field, num_leaves: int) -> Argument:
    field.members(("name", "kind", "value"), ("default",))
    kind = field["kind"].text()
    if kind not in set(ArgumentKind):
        field["kind"].fail(f"expected one of {[str(k) for k in ArgumentKind]}, got {kind!r}")
    value = field["value"]
    has_default = "default" in field.value
    return Argument(
        field["name"].text(),
        ArgumentKind(kind),
        None if value.value is None else structure_from_data(value, num_leaves),
        _scalar_from_data(field["default"]) if has_default else None,
        has_default,
    )


def _leaf_to_data(leaf: TensorLeaf | ConstantLeaf) -> dict[str, Any]:
    if isinstance(leaf, ConstantLeaf):
        return {"constant": _scalar_to_data(leaf.value)}
    return {
        "tensor": leaf.name,
        "dtype": dtype_name(leaf.dtype),
        "shape": [
            dim if isinstance(dim, int) else [dim.symbol, dim.minimum, dim.maximum]
            for dim in leaf.shape
        ],
    }


def _leaf_from_data(field: Field) -> TensorLeaf | ConstantLeaf:
    if isinstance(field.value, dict) and "constant" in field.value:
        field.members(("constant",))
        return ConstantLeaf(_scalar_from_data(field["constant"]))
    field.members(("tensor", "dtype", "shape"))
    shape = tuple(_dim_from_data(dim) for dim in field["shape"].items(_MAX_ITEMS))
    return TensorLeaf(field["tensor"].text(), dtype_of(field["dtype"]), shape)


def _dim_from_data(field: Field) -> int | DynamicDim:
    if isinstance(field.value, int):
        return field.integer()
    parts = tuple(field.items(3))
    if len(parts) != 3:
        field.fail("expected a size or [symbol, minimum, maximum]")
    symbol, minimum, maximum = parts
    return DynamicDim(
        symbol.text(), minimum.integer(), None if maximum.value is None else maximum.integer()
    )


def _guard(field: Field, symbols: frozenset[str]) -> Expression:
    try:
        return check(field.value, symbols)
    except ValueError as error:
        field.fail(str(error))


def _scalar_to_data(value: Scalar) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _scalar_from_data(field: Field) -> Scalar:
    value = field.value
    if isinstance(value, dict):
        field.members(("float",))
        if field["float"].text() not in ("inf", "-inf", "nan"):
            field.fail("expected inf, -inf or nan")
        return float(field["float"].text())
    if value is not None and not isinstance(value, (bool, int, float, str)):
        field.fail("expected a plain value")
    return value


def _as_lists(expression: Expression) -> Any:
    if isinstance(expression, tuple):
        return [_as_lists(operand) for operand in expression]
    return expression
