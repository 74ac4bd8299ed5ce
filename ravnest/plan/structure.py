"""Nested containers of values as plain data, so that any input or output travels without code.

A structure is JSON: an integer is the index of a leaf; `{"list": [..]}`, `{"tuple": [..]}` and
`{"dict": [[key, ..], ..]}` are containers; `{"record": [[name, ..], ..]}` is an object with named
fields. Knows nothing of tensors: a leaf is whatever is no container.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Structure: TypeAlias = "int | dict[str, list[Any]]"

MAX_DEPTH = 64


class Record(dict[str, Any]):
    """Named values read as attributes, by key or by position, like a transformers output."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are {sorted(self)}") from None

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, (int, slice)):
            return tuple(self.values())[key]
        return super().__getitem__(key)


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Leaves from left to right, and the structure around them."""
    leaves: list[Any] = []

    def visit(item: Any) -> Structure:
        if isinstance(item, Mapping):
            kind = "dict" if type(item) is dict else "record"
            return {kind: [[key, visit(child)] for key, child in item.items()]}
        if isinstance(item, (list, tuple)):
            kind = "tuple" if isinstance(item, tuple) else "list"
            return {kind: [visit(child) for child in item]}
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            names = [field.name for field in dataclasses.fields(item)]
            return {"record": [[name, visit(getattr(item, name))] for name in names]}
        leaves.append(item)
        return len(leaves) - 1

    return leaves, visit(value)


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The inverse of `flatten`; a record comes back as a `Record`.

    Raises:
        ValueError: the structure is malformed or names a leaf that is not there.
    """
    return _build(structure, leaves, 0)


def _build(structure: Any, leaves: Sequence[Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"structure is nested deeper than {MAX_DEPTH}")
    if isinstance(structure, int) and not isinstance(structure, bool):
        if not 0 <= structure < len(leaves):
            raise ValueError(f"structure names leaf {structure} of {len(leaves)}")
        return leaves[structure]
    if not isinstance(structure, dict) or len(structure) != 1:
        raise ValueError(f"structure has an unknown part {structure!r}")
    ((kind, children),) = structure.items()
    if not isinstance(children, list):
        raise ValueError(f"structure has an unknown part {structure!r}")
    if kind in ("list", "tuple"):
        built = [_build(child, leaves, depth + 1) for child in children]
        return built if kind == "list" else tuple(built)
    if kind in ("dict", "record") and all(isinstance(c, list) and len(c) == 2 for c in children):
        pairs = {key: _build(child, leaves, depth + 1) for key, child in children}
        return pairs if kind == "dict" else Record(pairs)
    raise ValueError(f"structure has an unknown part {kind!r}")
