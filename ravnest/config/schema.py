"""The entry of one node in node_configs.json: which keys, of which type, in which words refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ravnest.config.addresses import parse_address
from ravnest.config.source import JsonObject, shown

# Far outside what machines have, and far inside what products of such numbers can overflow.
_SMALLEST, _LARGEST = 1e-6, 1e12


def _checked_address(text: str) -> str:
    parse_address(text)
    return text


_Quantity = Annotated[float, Field(ge=_SMALLEST, le=_LARGEST)]
_HostPort = Annotated[str, AfterValidator(_checked_address)]


class _Benchmarks(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ram: _Quantity
    bandwidth: _Quantity
    flops: _Quantity | None = None
    latency: _Quantity | None = None
    device: Annotated[str, Field(pattern=r"^[a-z]+(:[0-9]+)?$")] | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    IP: _HostPort
    bind: _HostPort | None = None
    benchmarks: _Benchmarks


_EXPECTED = {
    "IP": 'host:port that others reach the node at, such as "203.0.113.5:8080"',
    "bind": 'host:port to listen on, such as "0.0.0.0:8080"',
    "benchmarks": 'an object such as {"ram": 8, "bandwidth": 20}',
    "benchmarks.ram": "a positive number of GB",
    "benchmarks.bandwidth": "a positive number of Mbps",
    "benchmarks.flops": "a positive number of GFLOP/s",
    "benchmarks.latency": "a positive number of milliseconds",
    "benchmarks.device": 'a torch device name such as "cpu" or "cuda:0"',
}
_ENTRY = 'an object with "IP" and "benchmarks"'


def entry_faults(key: str, entry: Any) -> Iterator[str]:
    """What is wrong with the entry under one key, one sentence per fault."""
    if not isinstance(entry, JsonObject):
        yield f"node {key} is {shown(entry)}; expected {_ENTRY}"
        return
    yield from _repeated_keys(key, "", entry)
    benchmarks = entry.get("benchmarks")
    if isinstance(benchmarks, JsonObject):
        yield from _repeated_keys(key, "benchmarks.", benchmarks)
    try:
        _Entry.model_validate(entry)
    except ValidationError as error:
        for fault in error.errors():
            yield f"node {key}: {_words(dict(fault))}"
    yield from _null_fields(key, entry)


def _repeated_keys(key: str, prefix: str, entry: JsonObject) -> Iterator[str]:
    for name, values in entry.repeated.items():
        listed = " and ".join(shown(value) for value in values)
        yield f"node {key}: {prefix}{name} is given {len(values)} times ({listed}); expected once"


def _null_fields(key: str, entry: JsonObject) -> Iterator[str]:
    """An optional key is left out, not null; pydantic would take both."""
    benchmarks = entry.get("benchmarks")
    found = {"bind": entry.get("bind", "")}
    if isinstance(benchmarks, JsonObject):
        for name in ("flops", "latency", "device"):
            found[f"benchmarks.{name}"] = benchmarks.get(name, "")
    for field, value in found.items():
        if value is None:
            yield f"node {key}: {field} is null; expected {_EXPECTED[field]}, or no such key"


def _words(fault: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{field} is missing; expected {_EXPECTED[field]}"
    value = shown(fault["input"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {field} (value {value}); expected {_known_keys(field)}"
    expected = _EXPECTED[field]
    if fault["type"] == "value_error":
        return f"{field} is {value}: {fault['ctx']['error']}; expected {expected}"
    is_outside = fault["type"] in ("greater_than_equal", "less_than_equal") and fault["input"] > 0
    limits = f" from {_SMALLEST:g} to {_LARGEST:g}" if is_outside else ""
    return f"{field} is {value}; expected {expected}{limits}"


def _known_keys(field: str) -> str:
    prefix, _, name = field.rpartition(".")
    model = _Benchmarks if prefix else _Entry
    near = difflib.get_close_matches(name, model.model_fields, n=1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    return f"one of {', '.join(model.model_fields)}{guess}"
