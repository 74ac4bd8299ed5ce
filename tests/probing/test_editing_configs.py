"""Edits in place: the entry is set, and every other byte is as it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.config import load_node_configs
from ravnest.config.source import strip_comments
from ravnest.errors import ConfigError
from ravnest.probing.editing import edited
from ravnest.probing.recording import Entry, prepare, record

FIELDS = ("ram", "bandwidth", "flops", "latency", "device")
MEASURED = {"ram": 18.5, "bandwidth": 93.9, "flops": 117, "latency": 20.25, "device": "cuda:0"}


def parsed(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(strip_comments(text.removeprefix("\ufeff")))
    return document


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[str], dict[str, list[int]], bool]:
    """Pieces of a legal file; per field of node 7 which pieces are its value; whether it is there.

    Built of pieces, so that what must come out needs no parser to be known.
    """
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    comment = st.sampled_from(['// "ram": 1, }', "// {", '//"', "// ü // 7", "//"]).map(
        lambda text: text + newline
    )
    space = st.lists(st.sampled_from([" ", "\t", newline]) | comment, max_size=3).map("".join)
    pieces = [draw(st.sampled_from(["", "\ufeff"])), draw(space), "{"]
    values: dict[str, list[int]] = {}
    ids = draw(st.lists(st.integers(0, 12).filter(lambda i: i != 7), max_size=3, unique=True))
    has_target = draw(st.booleans()) or not ids
    if has_target:
        ids.insert(draw(st.integers(0, len(ids))), 7)

    def add(*texts: str) -> None:
        for text in texts:
            pieces.extend([draw(space), text])

    for index, node_id in enumerate(ids):
        key = draw(
            st.sampled_from([str(node_id), "".join(f"\\u{ord(c):04x}" for c in str(node_id))])
        )
        add(*([","] if index else []), f'"{key}"', ":", "{")
        is_first = draw(st.booleans())
        if is_first:
            add('"IP"', ":", f'"10.0.0.{node_id + 1}:80"', ",")
        add('"benchmarks"', ":", "{")
        extra = draw(st.lists(st.sampled_from(FIELDS[2:]), max_size=3, unique=True))
        fields = draw(st.permutations(["ram", "bandwidth", *extra]))
        for position, field in enumerate(fields):
            number = draw(st.sampled_from(["8", "0.5", "1e2", "2.50"]))
            value = '"cpu"' if field == "device" else number
            add(*([","] if position else []), f'"{field}"', ":", value)
            if node_id == 7:
                values[field] = [len(pieces) - 1]
        add("}")
        if not is_first:
            add(",", '"IP"', ":", f'"10.0.0.{node_id + 1}:80"')
        add("}")
    add("}")
    pieces.append(draw(space))
    return pieces, values, has_target


@settings(max_examples=100, deadline=None)
@given(layouts(), st.sets(st.sampled_from(FIELDS), min_size=1))
def test_only_the_entry_changes(
    layout: tuple[list[str], dict[str, list[int]], bool], changed: set[str]
) -> None:
    pieces, values, has_target = layout
    text = "".join(pieces)
    fields = {name: MEASURED[name] for name in FIELDS if name in changed}
    after = edited(text, 7, "10.0.0.8:80", fields)
    document = parsed(text)
    if has_target:
        document["7"]["benchmarks"].update(fields)
    else:
        document["7"] = {"IP": "10.0.0.8:80", "benchmarks": fields}
    assert parsed(after) == document
    assert list(parsed(after)) == list(document)
    # Every piece that is no changed value is still there, in order; lines may come between lines.
    replaced = {index for name in fields for index in values.get(name, ())}
    position = 0
    for index, piece in enumerate(pieces):
        for part in re.split(r"(?=[\r\n])", "" if index in replaced else piece):
            position = after.index(part, position) + len(part)
    if fields.keys() <= values.keys():
        expected = [
            json.dumps(next(fields[n] for n in fields if values[n] == [index]))
            if index in replaced
            else piece
            for index, piece in enumerate(pieces)
        ]
        assert after == "".join(expected)
    else:
        # What was put in is what its absence shows: nothing but new fields has come to the file.
        assert edited(after, 7, "", fields) == after


def test_new_fields_follow_the_layout_of_the_old(tmp_path: Path) -> None:
    text = (
        '{\r\n  "0": {"IP": "10.0.0.1:80",\r\n'
        '    "benchmarks": {\r\n      "ram": 8, // GB\r\n'
        '      "bandwidth": 20 // Mbps\r\n    }},\r\n'
        '  "1": {"IP": "10.0.0.2:80", "benchmarks": {"ram": 8, "bandwidth": 20}} // slow\r\n}'
    )
    fields = {"flops": 100, "device": "cpu"}
    assert edited(text, 0, "", fields) == text.replace(
        "20 // Mbps\r\n", '20, // Mbps\r\n      "flops": 100,\r\n      "device": "cpu"\r\n'
    )
    assert edited(text, 1, "", fields) == text.replace(
        '"bandwidth": 20}}', '"bandwidth": 20, "flops": 100, "device": "cpu"}}'
    )
    added = edited(text, 2, "10.0.0.3:80", {"ram": 1, "bandwidth": 2})
    assert added == text.replace(
        "20}} // slow\r\n",
        "20}}, // slow\r\n"
        '  "2": {"IP": "10.0.0.3:80", "benchmarks": {"ram": 1, "bandwidth": 2}}\r\n',
    )


def entry(**changes: Any) -> Entry:
    values: dict[str, Any] = {"ram_gb": 8.0, "bandwidth_mbps": 20.0, **changes}
    return Entry(values.pop("node_id", 0), values.pop("address", "127.0.0.1:8080"), **values)


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "node_data" / "node_configs.json"
    record(path, prepare(path, entry(flops_gflops=117.4567, latency_ms=0.000123456)))
    (node,) = load_node_configs(path)
    assert (node.ram_gb, node.flops_gflops, node.latency_ms) == (8.0, 117.5, 0.0001235)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_second_run_changes_the_same_entry(tmp_path: Path) -> None:
    path = tmp_path / "node_configs.json"
    record(path, prepare(path, entry()))
    first = path.read_text()
    record(path, prepare(path, Entry(0, None, ram_gb=9.0)))
    assert path.read_text() == first.replace('"ram": 8', '"ram": 9')


def test_a_link_keeps_pointing_to_the_file_and_the_mode_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "node_configs.json"
    record(real, prepare(real, entry()))
    real.chmod(0o640)
    link.symlink_to(real)
    record(link, prepare(link, entry(ram_gb=9.0)))
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert load_node_configs(real)[0].ram_gb == 9.0


def test_a_file_with_faults_is_refused_with_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "node_configs.json"
    path.write_text('{"0": {"IP": "nowhere", "benchmarks": {"ram": -1, "bandwidth": 20}}}')
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"2 faults(.|\n)*IP is(.|\n)*ram is -1"):
        prepare(path, entry())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("given_entry", "words"),
    [
        (entry(node_id=1, address=None), "no node 1, and no address"),
        (entry(node_id=1, bandwidth_mbps=None), "no bandwidth for node 1"),
        (entry(node_id=1), r"with the entry has 1 fault(.|\n)*is that of node 0 too"),
        (
            entry(node_id=1, address="10.0.0.5:80"),
            r"with the entry has 1 fault(.|\n)*no other machine",
        ),
        (entry(node_id=1, address="127.0.0.1:0"), r"with the entry has 1 fault(.|\n)*port '0'"),
        (entry(address="127.0.0.1:8081"), "has node 0 at 127.0.0.1:8080, but 127.0.0.1:8081"),
        (entry(address="127.0.0.1"), "not of the form host:port"),
        (entry(ram_gb=0.0), "benchmarks.ram is 0.0; expected a positive number"),
        (entry(ram_gb=float("nan")), "benchmarks.ram is NaN"),
        (entry(device="my gpu"), "benchmarks.device"),
    ],
)
def test_an_entry_that_the_file_may_not_have_is_refused(
    tmp_path: Path, given_entry: Entry, words: str
) -> None:
    path = tmp_path / "node_configs.json"
    record(path, prepare(path, entry()))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=words):
        prepare(path, given_entry)
    assert path.read_bytes() == before


def test_what_cannot_be_written_leaves_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "node_configs.json"
    with pytest.raises(ConfigError, match="cannot be written"):
        record(path, prepare(path, entry()))
