"""The values of a frame that are no tensors: typed scalars, and details as bounded JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ravnest.errors import ProtocolError
from ravnest.wire import limits
from ravnest.wire.frame import Scalar
from ravnest.wire.pb import frame_pb2


def pack_scalars(scalars: Mapping[str, Scalar]) -> list[frame_pb2.Scalar]:
    """Descriptions of the scalars; ProtocolError for another type or one that is too large."""
    limits.check("number of scalars", len(scalars), limits.MAX_SCALARS)
    return [_pack_scalar(limits.checked_name(name), value) for name, value in scalars.items()]


def _pack_scalar(name: str, value: Scalar) -> frame_pb2.Scalar:
    match value:
        case None:
            return frame_pb2.Scalar(name=name)
        case bool():
            return frame_pb2.Scalar(name=name, boolean=value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return frame_pb2.Scalar(name=name, integer=value)
        case int() if value.bit_length() <= 3 * limits.MAX_INTEGER_DIGITS:
            return frame_pb2.Scalar(name=name, big_integer=str(value))
        case float():
            return frame_pb2.Scalar(name=name, real=value)
        case str():
            return frame_pb2.Scalar(name=name, text=value)
    raise ProtocolError(
        f"scalar {name!r} is a {type(value).__name__}; expected None, bool, float, str or "
        f"an int of at most {limits.MAX_INTEGER_DIGITS} digits"
    )


def unpack_scalars(entries: Sequence[frame_pb2.Scalar]) -> dict[str, Scalar]:
    """The scalars by name; ProtocolError when one is malformed or there twice."""
    limits.check("number of scalars", len(entries), limits.MAX_SCALARS)
    scalars: dict[str, Scalar] = {}
    for entry in entries:
        if limits.checked_name(entry.name) in scalars:
            raise ProtocolError(f"scalar {entry.name!r} is there twice")
        scalars[entry.name] = _unpack_scalar(entry)
    return scalars


def _unpack_scalar(entry: frame_pb2.Scalar) -> Scalar:
    match entry.WhichOneof("value"):
        case "boolean":
            return entry.boolean
        case "integer":
            return entry.integer
        case "real":
            return entry.real
        case "text":
            return entry.text
        case "big_integer":
            return _big_integer(entry)
        case _:
            return None


def _big_integer(entry: frame_pb2.Scalar) -> int:
    digits = entry.big_integer.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > limits.MAX_INTEGER_DIGITS:
        raise ProtocolError(
            f"scalar {entry.name!r} of {len(digits)} characters is no integer of at most "
            f"{limits.MAX_INTEGER_DIGITS} digits"
        )
    return int(entry.big_integer)


def pack_details(details: Mapping[str, Any]) -> bytes:
    """Details as JSON; ProtocolError when they are not JSON-able or too large."""
    if not details:
        return b""
    try:
        text = json.dumps(dict(details), separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"details are not JSON-able: {error}") from error
    _check_details(text, details)
    return text


def unpack_details(text: bytes) -> dict[str, Any]:
    """Details from JSON; ProtocolError when they are malformed, too large or too deep."""
    if not text:
        return {}
    limits.check("size of the details", len(text), limits.MAX_DETAILS_BYTES)
    try:
        details = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"details are no JSON: {error}") from error
    if not isinstance(details, dict):
        raise ProtocolError(f"details are a JSON {type(details).__name__}, expected an object")
    _check_details(text, details)
    return details


def _check_details(text: bytes, details: Mapping[str, Any]) -> None:
    limits.check("size of the details", len(text), limits.MAX_DETAILS_BYTES)
    if text.count(b"[") + text.count(b"{") < limits.MAX_DETAILS_DEPTH:
        return  # With so few containers they cannot nest too deep.
    depth = 0
    level: list[Any] = [details]
    while level:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, (Mapping, list, tuple))
            for child in (item.values() if isinstance(item, Mapping) else item)
        ]
    limits.check("depth of the details", depth, limits.MAX_DETAILS_DEPTH)
