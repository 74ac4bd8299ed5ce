"""The spelling of changes, read strictly:

change  = "node." ID "." FIELD "=" NUMBER          another number for a node
        | "+node " FIELD "=" NUMBER {"," FIELD "=" NUMBER}     one node more
        | "-node." ID                              without a node
        | "batch=" (COUNT | NUMBER "x")            another example batch
        | OPTION "=" VALUE                         another option of clusterize
FIELD   = "ram" | "bandwidth" | "flops" | "latency"    as in node_configs.json
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from ravnest.cli.whatif.changes import (
    BatchChanged,
    Change,
    NodeAdded,
    NodeChanged,
    NodeField,
    NodeRemoved,
    OptionChanged,
)
from ravnest.cli.whatif.options import OPTIONS
from ravnest.config.schema import entry_faults
from ravnest.config.source import JsonObject
from ravnest.errors import ConfigError

_ID = r"(?P<id>0|[1-9][0-9]{0,18})"
_NODE_CHANGED = re.compile(rf"node\.{_ID}\.(?P<field>\w+)=(?P<value>.*)", re.ASCII)
_NODE_REMOVED = re.compile(rf"-node\.{_ID}", re.ASCII)
_NODE_ADDED = re.compile(r"\+node +(?P<values>.+)", re.ASCII)
_BATCH = re.compile(r"batch=(?:(?P<size>[1-9][0-9]{0,8})|(?P<factor>[0-9.]+)x)", re.ASCII)
_OPTION = re.compile(r"(?P<name>[a-z_]+)=(?P<value>.*)", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?(e[+-]?[0-9]{1,3})?|\.[0-9]+", re.ASCII | re.IGNORECASE)
_MAX_FACTOR = 1e6

FORMS = (
    "node.2.ram=16 (also bandwidth, flops, latency)",
    "+node ram=16,bandwidth=100",
    "-node.3",
    "batch=16 or batch=2x",
    *(f"{name}={option.example}" for name, option in OPTIONS.items()),
)


def parse_changes(texts: Sequence[str]) -> tuple[Change, ...]:
    """Reads changes, each from a text of its own.

    Raises:
        ConfigError: one of them is malformed, or changes what another one has changed.
    """
    changes: list[Change] = []
    by_target: dict[str, str] = {}
    for text in texts:
        change = parse_change(text)
        target = _target(change)
        if target in by_target:
            raise ConfigError(
                f"{text!r} and {by_target[target]!r} change the same thing; expected one of them"
            )
        if target:
            by_target[target] = text
        changes.append(change)
    return tuple(changes)


def parse_change(text: str) -> Change:
    """Reads one change.

    Raises:
        ConfigError: it is malformed; the message says what is allowed instead.
    """
    stripped = text.strip()
    if match := _NODE_CHANGED.fullmatch(stripped):
        node_id = int(match["id"])
        field = _field(match["field"], text)
        return NodeChanged(node_id, field, _quantity(field, match["value"], text))
    if match := _NODE_REMOVED.fullmatch(stripped):
        return NodeRemoved(int(match["id"]))
    if match := _NODE_ADDED.fullmatch(stripped):
        return _node_added(match["values"], text)
    if stripped.startswith("batch="):
        return _batch(stripped, text)
    if match := _OPTION.fullmatch(stripped):
        return _option(match["name"], match["value"], text)
    raise ConfigError(f"{text!r} is no change", hint=_all_forms())


def _target(change: Change) -> str:
    """What a change is about; "" for one that never is in the way of another."""
    match change:
        case NodeChanged():
            return f"node.{change.node_id}.{change.field}"
        case NodeRemoved():
            return f"-node.{change.node_id}"
        case BatchChanged():
            return "batch"
        case OptionChanged():
            return change.name
        case NodeAdded():
            return ""


def _field(name: str, text: str) -> NodeField:
    try:
        return NodeField(name)
    except ValueError:
        _refuse(
            text,
            f"a node has no {name!r}; expected {_either(NodeField)}{_guess(name, NodeField)}",
        )


def _quantity(field: NodeField, value: str, text: str) -> float:
    """A number of a node, within the limits of node_configs.json."""
    if not _NUMBER.fullmatch(value):
        _refuse(text, f"{value!r} is no positive number ({field} is in {field.unit})")
    number = float(value)
    benchmarks = {"ram": 1.0, "bandwidth": 1.0, field.value: number}
    pairs = [("IP", "192.0.2.1:1"), ("benchmarks", JsonObject(list(benchmarks.items())))]
    for fault in entry_faults("of the change", JsonObject(pairs)):
        _refuse(text, fault.partition(": ")[2].removeprefix("benchmarks."))
    return number


def _node_added(values: str, text: str) -> NodeAdded:
    found: dict[NodeField, float] = {}
    for part in values.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            _refuse(text, f"{part.strip()!r} is not of the form field=number")
        field = _field(name, text)
        if field in found:
            _refuse(text, f"{field} is given twice")
        found[field] = _quantity(field, value, text)
    for required in (NodeField.RAM, NodeField.BANDWIDTH):
        if required not in found:
            _refuse(text, f"{required} ({required.unit}) is missing")
    return NodeAdded(tuple((field, found[field]) for field in NodeField if field in found))


def _batch(stripped: str, text: str) -> BatchChanged:
    match = _BATCH.fullmatch(stripped)
    if match is None:
        _refuse(text, "expected a number of samples, like batch=16, or a factor, like batch=2x")
    if match["size"]:
        return BatchChanged(float(match["size"]), is_factor=False)
    if not _NUMBER.fullmatch(match["factor"]) or not 0 < float(match["factor"]) <= _MAX_FACTOR:
        _refuse(text, f"{match['factor']!r} is no factor; expected one like batch=2x")
    return BatchChanged(float(match["factor"]), is_factor=True)


def _option(name: str, value: str, text: str) -> OptionChanged:
    if name not in OPTIONS:
        names = ("batch", *OPTIONS)
        _refuse(text, f"unknown key {name!r}; expected {_either(names)}{_guess(name, names)}")
    option = OPTIONS[name]
    try:
        return OptionChanged(name, option.parse(value), value)
    except ValueError as error:
        reason = f": {error}" if str(error) else ""
        _refuse(text, f"{value!r} is no {name}{reason}; expected {option.expected}")


def _refuse(text: str, reason: str) -> NoReturn:
    raise ConfigError(f"{text!r}: {reason}")


def _either(names: Iterable[str]) -> str:
    *first, last = map(str, names)
    return f"{', '.join(first)} or {last}"


def _guess(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(map(str, names)), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _all_forms() -> str:
    return "a change is one of:\n    " + "\n    ".join(FORMS)
