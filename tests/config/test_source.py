"""JSON with comments, a byte order mark and repeated keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.config.source import JsonObject, read_json, strip_comments
from ravnest.errors import ConfigError

_TEXT = st.text(st.sampled_from('/"\\abc{}:, '), max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_TEXT, children, max_size=3),
    max_leaves=8,
)
_COMMENT = st.text(st.sampled_from('/"\\abc{}: \t'), max_size=10).map(lambda text: f"//{text}")


def _written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "node_configs.json"
    path.write_bytes(content)
    return path


@given(_JSON, st.data())
def test_comments_at_line_ends_change_nothing(value: Any, data: st.DataObject) -> None:
    lines = json.dumps(value, indent=1).split("\n")
    commented = [line + data.draw(_COMMENT | st.just("")) for line in lines]
    stripped = strip_comments("\n".join(commented))
    assert stripped.split("\n") == lines
    assert json.loads(stripped) == value


@given(_JSON)
def test_text_without_comments_is_untouched(value: Any) -> None:
    text = json.dumps(value)
    assert strip_comments(text) == text


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_a_comment_ends_with_its_line(ending: str) -> None:
    text = ending.join(['{"a": 1, // one', '"b": "//" // two', "}"])
    assert json.loads(strip_comments(text)) == {"a": 1, "b": "//"}


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    assert read_json(_written(tmp_path, b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


def test_repeated_keys_keep_all_values(tmp_path: Path) -> None:
    found = read_json(_written(tmp_path, b'{"a": 1, "b": 2, "a": 3}'))
    assert isinstance(found, JsonObject)
    assert found.repeated == {"a": [1, 3]}


def test_invalid_json_names_line_and_column_of_the_commented_file(tmp_path: Path) -> None:
    path = _written(tmp_path, b'// first\n{"a": 1, // second\n  "b" 2}')
    with pytest.raises(ConfigError, match=r"node_configs\.json .*line 3, column 7"):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n// only a comment\n", "is empty"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{"a": "unfinished // }\n', "line 1, column 23"),
        (b"[" * 100_000, "no valid JSON"),
        (b"1" * 10_000, "no valid JSON"),
        ('{"a": 1}'.encode("utf-16"), "no UTF-8"),
    ],
)
def test_what_is_no_json_is_a_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_json(_written(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node_configs\.json does not exist"):
        read_json(tmp_path / "node_configs.json")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path)
