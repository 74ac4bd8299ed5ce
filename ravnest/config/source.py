"""JSON as people write it: `//` comments and a byte order mark are fine, repeated keys are kept.

Knows the syntax only; what the keys mean is the business of whoever reads the result.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ravnest.errors import ConfigError

# Strings are matched too, so that a // inside one is not taken for a comment. An unfinished
# string ends with its line, so that the JSON parser reports it where it starts.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*')


class JsonObject(dict[str, Any]):
    """An object of the file; `repeated` has all values of each key that occurs more than once."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: dict[str, list[Any]] = {}
        if len(self) < len(pairs):
            values: dict[str, list[Any]] = {}
            for key, value in pairs:
                values.setdefault(key, []).append(value)
            self.repeated = {key: found for key, found in values.items() if len(found) > 1}


def read_json(path: Path) -> Any:
    """The value in a JSON file, its objects as `JsonObject`; NaN and infinities become floats.

    Raises:
        ConfigError: the file is missing, unreadable, empty, no UTF-8 or no JSON (with line and
            column).
    """
    text = strip_comments(_read_text(path))
    if not text.strip():
        raise ConfigError(f"{path} is empty; expected a JSON object")
    try:
        return json.loads(text, object_pairs_hook=JsonObject)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is no valid JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            hint="keys and strings stand in double quotes; no comma follows the last entry",
        ) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets nested beyond the parser's depth.
        raise ConfigError(f"{path} is no valid JSON: {error}") from None


def strip_comments(text: str) -> str:
    """The text without `//` comments; every remaining character keeps its line and column."""
    return _STRING_OR_COMMENT.sub(
        lambda match: "" if match[0].startswith("//") else match[0],
        text.replace("\r\n", "\n").replace("\r", "\n"),
    )


def shown(value: Any, *, limit: int = 80) -> str:
    """A value as it stands in JSON, cut to a length that fits a message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; expected the file that describes the nodes",
            hint=f"write {path.name} with one entry per node, or pass node_configs=<path>",
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})",
            hint="save the file as UTF-8",
        ) from None
