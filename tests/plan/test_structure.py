"""Nested containers survive the way through JSON."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.plan.structure import MAX_DEPTH, Record, flatten, unflatten

leaves = st.one_of(st.none(), st.integers(), st.text(), st.booleans())
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(), inner),
        st.dictionaries(st.text(), inner).map(Record),
    ),
)


@given(nested)
def test_round_trip_through_json(value: Any) -> None:
    flat, structure = flatten(value)
    rebuilt = unflatten(json.loads(json.dumps(structure)), flat)
    assert rebuilt == value
    assert type(rebuilt) is type(value)


kinds = st.sampled_from(["list", "dict", "tuple", "x"])
malformed = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner), st.dictionaries(kinds, inner))
)


@given(malformed)
def test_malformed_structures_raise_value_error_only(structure: Any) -> None:
    with contextlib.suppress(ValueError):
        unflatten(structure, [1, 2])


def test_records_read_like_model_outputs() -> None:
    record = Record(loss=1, logits=2)
    assert (record.loss, record["logits"], record[0], record[1:]) == (1, 2, 1, (2,))
    with pytest.raises(AttributeError, match="no field 'missing'; there are"):
        _ = record.missing


def test_deep_nesting_is_refused() -> None:
    structure: Any = 0
    for _ in range(MAX_DEPTH + 2):
        structure = {"list": [structure]}
    with pytest.raises(ValueError, match="nested deeper"):
        unflatten(structure, [1])
