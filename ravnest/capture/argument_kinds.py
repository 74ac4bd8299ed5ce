"""Whether what a stage file passes to an operator is of a kind that its schema takes.

Values that are computed (nodes) may be tensors or numbers; that shows when they are. What is
written in the file itself, such as a string where a tensor belongs, shows before anything runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_NUMBERS = (bool, int, float, complex)

_LITERALS: dict[str, tuple[type, ...]] = {
    "TensorType": _NUMBERS,  # torch makes a tensor of it
    "NumberType": _NUMBERS,
    "ComplexType": _NUMBERS,
    "FloatType": (bool, int, float),
    "IntType": (bool, int, torch.dtype, torch.layout, torch.memory_format),
    "SymIntType": (bool, int),
    "BoolType": (bool, int),
    "StringType": (str,),
    "DeviceObjType": (torch.device,),
}
"""By kind of the schema's type; torch's schemas have dtypes, layouts and formats as integers."""


def fault(target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Any) -> str | None:
    """What is wrong with the arguments of a call, in words, or None.

    Args:
        args: values as the program will pass them; references to other values are fx nodes.
        kwargs: by names that the schema has.
    """
    declared = target._schema.arguments
    given = {argument.name: value for argument, value in zip(declared, args, strict=False)}
    given |= kwargs
    for argument in declared:
        if argument.name not in given:
            if not argument.has_default_value():
                return f"{target} lacks its argument {argument.name!r}"
        elif not _fits(argument.type, given[argument.name]):
            shown = repr(given[argument.name])[:60]
            return f"{target} takes {argument.type} as {argument.name!r}, not {shown}"
    return None


def _fits(expected: Any, value: Any) -> bool:
    kind = expected.kind()
    if kind == "OptionalType":
        return value is None or _fits(expected.getElementType(), value)
    if kind == "ListType":
        element = expected.getElementType()
        if isinstance(value, list | tuple):
            return all(_fits(element, item) for item in value)
        return isinstance(value, fx.Node) or (
            element.kind() != "TensorType" and _fits(element, value)  # one for every dimension
        )
    if isinstance(value, fx.Node):
        return kind not in ("StringType", "DeviceObjType")
    return isinstance(value, _LITERALS.get(kind, ()))
