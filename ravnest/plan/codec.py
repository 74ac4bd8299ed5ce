"""Plan dataclasses to canonical JSON that carries its own hash, and strictly back.

The hash covers the values, not the spacing: a file whose line endings were converted on the way
still counts as unedited. It detects accidents and edits; it is no signature.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from ravnest.errors import HashMismatchError, PlanFileError
from ravnest.plan.model import SCHEMA_VERSION, NodePlan, Plan

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RUN_AGAIN = "run clusterize again, or copy the file anew from where clusterize ran"

_Sealed = TypeVar("_Sealed", Plan, NodePlan)


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, fixed separators, ASCII, a final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, separators=(",", ": "), allow_nan=False)
    return f"{text}\n".encode("ascii")


def sealed(value: _Sealed) -> _Sealed:
    """The same plan with `sha256` set to the hash over everything else in it."""
    return dataclasses.replace(value, sha256=_hash(_plain(value)))


def encode(value: Plan | NodePlan) -> bytes:
    """A sealed plan as the bytes of its file."""
    return canonical_json(_plain(value))


def decode(kind: type[_Sealed], content: bytes, path: Path) -> _Sealed:
    """Reads back what `encode` made.

    Args:
        path: where the bytes are from, for messages.

    Raises:
        HashMismatchError: the values are not those that were hashed.
        PlanFileError: it is no such file, or one of another schema.
    """
    raw = _parse(content, path)
    schema = raw.get("schema")
    if schema != SCHEMA_VERSION:
        raise PlanFileError(
            f"{path} has schema {schema!r}; this version of ravnest reads {SCHEMA_VERSION}",
            hint="use one version of ravnest on all machines, and run clusterize again with it",
        )
    actual, expected = _hash(raw), raw.get("sha256")
    if actual != expected:
        raise HashMismatchError(
            f"{path} has been changed since it was written: its contents hash to {actual}, "
            f"expected {expected}",
            hint=RUN_AGAIN,
        )
    try:
        value: _Sealed = TypeAdapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        _damaged(path, str(error))
    if _plain(value) != raw:  # pydantic drops keys that a dataclass does not have
        _damaged(path, "it has keys that this version of ravnest does not write")
    return value


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _damaged(path, str(error))
    if not isinstance(raw, dict):
        _damaged(path, "it holds no JSON object")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _damaged(path: Path, reason: str) -> NoReturn:
    raise PlanFileError(f"{path} is damaged: {reason}", hint=RUN_AGAIN)


def _hash(plain: dict[str, Any]) -> str:
    content = {key: value for key, value in plain.items() if key != "sha256"}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def _plain(value: DataclassInstance) -> dict[str, Any]:
    """Plain JSON data: string keys, so that they sort the same before and after a round trip."""
    return {
        field.name: _plain_value(getattr(value, field.name)) for field in dataclasses.fields(value)
    }


def _plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    if isinstance(value, (tuple, list)):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain_value(item) for key, item in value.items()}
    return str(value) if isinstance(value, str) else value
