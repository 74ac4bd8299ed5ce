"""Puts measured values into node_configs.json in place: everything else keeps its every byte.

The file is people's: other nodes, comments, the order of keys, indentation, line endings and a byte
order mark stay. Knows the syntax of the file; `config/` judges whether it is legal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# As in config/source.py, but what is blanked out here keeps its length.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\r\n]|\\[^\r\n])*"?|//[^\r\n]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_LINE_START = re.compile(r"(\r\n|\n|\r)([ \t]*)\Z")
_REST_OF_LINE = re.compile(r"[ \t]*(?=[\r\n]|\Z)")
_DECODER = json.JSONDecoder()
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class _Member:
    """A key of an object and where it and its value stand in the text."""

    key: str
    key_start: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def new_file(node_id: int, address: str, benchmarks: Mapping[str, Any]) -> str:
    """The text of a file with this one node."""
    entry = json.dumps({"IP": address, "benchmarks": dict(benchmarks)}, ensure_ascii=False)
    return f'{{\n  "{node_id}": {entry}\n}}\n'


def edited(text: str, node_id: int, address: str, benchmarks: Mapping[str, Any]) -> str:
    """The text of a legal node_configs.json with the benchmarks of one node set.

    Args:
        text: the whole file; a byte order mark is its first character.
        node_id: whose entry; one that is not there is added after the last.
        address: `IP` of an added entry; an entry that is there keeps its own.
        benchmarks: fields to set; fields of the entry that are not named stay.
    """
    plain = _blanked(text)
    nodes = _members(plain, plain.index("{"))
    entry = next((member for member in nodes if member.key == str(node_id)), None)
    if entry is None:
        value = json.dumps({"IP": address, "benchmarks": dict(benchmarks)}, ensure_ascii=False)
        return _applied(text, _append(text, plain, nodes, {str(node_id): value}))
    fields = _members(plain, entry.value_start)
    target = next(member for member in fields if member.key == "benchmarks")
    present = _members(plain, target.value_start)
    by_key = {member.key: member for member in present}
    edits = [
        _Edit(by_key[key].value_start, by_key[key].value_end, json.dumps(value))
        for key, value in benchmarks.items()
        if key in by_key
    ]
    missing = {key: json.dumps(value) for key, value in benchmarks.items() if key not in by_key}
    if missing:
        edits += _append(text, plain, present, missing)
    return _applied(text, edits)


def _blanked(text: str) -> str:
    """The text with spaces for comments and byte order mark, so that positions are the same."""
    plain = _STRING_OR_COMMENT.sub(
        lambda match: " " * len(match[0]) if match[0].startswith("//") else match[0], text
    )
    return plain.replace(_BOM, " ", 1) if plain.startswith(_BOM) else plain


def _members(plain: str, start: int) -> list[_Member]:
    """The members of the object that starts at `start`, in order."""
    members: list[_Member] = []
    position = _after_space(plain, start + 1)
    while plain[position] != "}":
        key_start = position
        key, position = _DECODER.raw_decode(plain, position)
        value_start = _after_space(plain, _after_space(plain, position) + 1)
        _, value_end = _DECODER.raw_decode(plain, value_start)
        members.append(_Member(key, key_start, value_start, value_end))
        position = _after_space(plain, value_end)
        if plain[position] == ",":
            position = _after_space(plain, position + 1)
    return members


def _after_space(plain: str, position: int) -> int:
    match = _SPACE.match(plain, position)
    assert match is not None
    return match.end()


def _append(text: str, plain: str, members: list[_Member], added: Mapping[str, str]) -> list[_Edit]:
    """Edits that put members after the last one of an object, in the manner of that one.

    A last member that begins a line gets lines after it, below the comment that may end its line;
    otherwise the new ones go on in its line.
    """
    last = members[-1]
    line_start = _LINE_START.search(text[: last.key_start])
    pairs = [f'"{key}": {value}' for key, value in added.items()]
    if line_start is None:
        return [_Edit(last.value_end, last.value_end, "".join(f", {pair}" for pair in pairs))]
    prefix = line_start[0]
    lines = prefix + f",{prefix}".join(pairs)
    rest = _REST_OF_LINE.match(plain, last.value_end)
    if rest is None:  # the closing bracket stands on the same line
        return [_Edit(last.value_end, last.value_end, f",{lines}")]
    return [_Edit(last.value_end, last.value_end, ","), _Edit(rest.end(), rest.end(), lines)]


def _applied(text: str, edits: list[_Edit]) -> str:
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join((*pieces, text[position:]))
