"""Reads JSON from a file nobody vouches for: every fault is a PlanFileError with file and field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ravnest.errors import PlanFileError

MAX_BYTES = 64 << 20
MAX_NAME = 1024


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a JSON file, and where it stands.

    Attributes:
        file: the file, for messages.
        path: the way to the value, like `train.nodes[3].args`.
        value: what the parser made of it.
    """

    file: Path
    path: str
    value: Any

    def fail(self, problem: str) -> NoReturn:
        """Raises the PlanFileError for this field."""
        raise PlanFileError(
            f"{self.file}: field {self.path or '(whole file)'}: {problem}",
            hint="write the plan again with clusterize, or fetch the file again from its source",
        )

    def __getitem__(self, key: str) -> Field:
        return Field(self.file, f"{self.path}.{key}" if self.path else key, self.value[key])

    def members(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Requires an object with exactly these fields."""
        if not isinstance(self.value, dict):
            self.fail(f"expected an object, got {_short(self.value)}")
        if missing := sorted(set(required) - self.value.keys()):
            self.fail(f"lacks {missing}")
        if unknown := sorted(self.value.keys() - set(required) - set(optional)):
            self.fail(f"has unknown fields {unknown}")

    def items(self, limit: int) -> Iterator[Field]:
        """Requires a list of at most `limit` items."""
        if not isinstance(self.value, list):
            self.fail(f"expected a list, got {_short(self.value)}")
        if len(self.value) > limit:
            self.fail(f"has {len(self.value)} items, at most {limit} are allowed")
        for index, value in enumerate(self.value):
            yield Field(self.file, f"{self.path}[{index}]", value)

    def text(self) -> str:
        """Requires a string of bounded length."""
        if not isinstance(self.value, str) or len(self.value) > MAX_NAME:
            self.fail(
                f"expected a string of at most {MAX_NAME} characters, got {_short(self.value)}"
            )
        return self.value

    def flag(self) -> bool:
        """Requires true or false."""
        if not isinstance(self.value, bool):
            self.fail(f"expected true or false, got {_short(self.value)}")
        return self.value

    def integer(self, low: int = 0, high: int = 2**63 - 1) -> int:
        """Requires an integer of a range."""
        if type(self.value) is not int or not low <= self.value <= high:
            self.fail(f"expected an integer from {low} to {high}, got {_short(self.value)}")
        return self.value


def read(path: Path) -> Field:
    """Parses a file of bounded size; duplicate keys, NaN and endless nesting are refused.

    Raises:
        PlanFileError: it is missing, too large or no JSON.
    """
    whole = Field(path, "", None)
    try:
        if path.stat().st_size > MAX_BYTES:
            whole.fail(f"has {path.stat().st_size} bytes, at most {MAX_BYTES} are allowed")
        text = path.read_bytes().decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except OSError as error:
        raise PlanFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path}: no valid JSON: {str(error)[:200]}") from error
    return Field(path, "", value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not allowed")


def _short(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"
