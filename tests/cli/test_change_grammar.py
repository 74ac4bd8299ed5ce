"""Changes of a what-if: what is read, what is refused and in which words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.cli.whatif.changes import (
    BatchChanged,
    Change,
    NodeAdded,
    NodeChanged,
    NodeField,
    NodeRemoved,
    OptionChanged,
)
from ravnest.cli.whatif.grammar import parse_change, parse_changes
from ravnest.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("node.2.ram=16", NodeChanged(2, NodeField.RAM, 16)),
        ("node.0.bandwidth=1e3", NodeChanged(0, NodeField.BANDWIDTH, 1000)),
        ("node.12.latency=.5", NodeChanged(12, NodeField.LATENCY, 0.5)),
        ("node.2.flops=500", NodeChanged(2, NodeField.FLOPS, 500)),
        (
            "+node bandwidth=100, ram=16",
            NodeAdded(((NodeField.RAM, 16), (NodeField.BANDWIDTH, 100))),
        ),
        (
            "+node ram=1,bandwidth=2,flops=3,latency=4",
            NodeAdded(tuple(zip(NodeField, (1.0, 2.0, 3.0, 4.0), strict=True))),
        ),
        ("-node.3", NodeRemoved(3)),
        ("batch=16", BatchChanged(16, is_factor=False)),
        ("batch=0.5x", BatchChanged(0.5, is_factor=True)),
        ("num_clusters=2", OptionChanged("num_clusters", 2, "2")),
        ("num_clusters=auto", OptionChanged("num_clusters", None, "auto")),
        ("schedule=async", OptionChanged("schedule", "async", "async")),
        ("update_frequency=16", OptionChanged("update_frequency", 16, "16")),
        ("reduce_factor=50", OptionChanged("reduce_factor", 50, "50")),
        ("compression=int8", OptionChanged("compression", "int8", "int8")),
        ("compression=auto", OptionChanged("compression", "auto", "auto")),
        ("compression=none", OptionChanged("compression", False, "none")),
        ("recompute=true", OptionChanged("recompute", True, "true")),
        ("recompute=false", OptionChanged("recompute", False, "false")),
        ("optimizer=SGD", OptionChanged("optimizer", torch.optim.SGD, "SGD")),
    ],
)
def test_every_form_is_read(text: str, change: Change) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node.2.rum=16", r"no 'rum'; expected ram, bandwidth, flops or latency \(did you mean"),
        ("node.2.ram=lots", "'lots' is no positive number"),
        ("node.2.ram=-1", "'-1' is no positive number"),
        ("node.2.ram=nan", "'nan' is no positive number"),
        ("node.2.ram=", "'' is no positive number"),
        ("node.2.ram=0", "ram is 0.0; expected a positive number of GB"),
        ("node.2.bandwidth=1e13", "expected a positive number of Mbps from 1e-06 to 1e"),
        ("node.2.ram=1e999", "ram is"),
        ("+node ram=16", r"bandwidth \(Mbps\) is missing"),
        ("+node ram=16,bandwidth", "'bandwidth' is not of the form field=number"),
        ("+node ram=16,bandwidth=1,ram=2", "ram is given twice"),
        ("+node ram=16,bandwidth=1,", "'' is not of the form"),
        ("batch=0", "expected a number of samples"),
        ("batch=-4", "expected a number of samples"),
        ("batch=0x", "'0' is no factor"),
        ("batch=1.2.3x", "'1.2.3' is no factor"),
        ("schedule=gpipe", "'gpipe' is no schedule; expected 1f1b or async"),
        ("num_clusters=0", "expected a whole number from 1 on, or auto"),
        ("update_frequency=1.5", "expected a whole number from 1 on"),
        ("recompute=yes", "expected true or false"),
        ("compression=int9", "there are none, fp16, bf16, int8, int4, int4-hadamard, auto"),
        ("optimizer=Adma", "did you mean 'Adam'?"),
        ("optimizer=Optimizer", "expected the name of a class of torch.optim"),
        ("optimiser=SGD", r"unknown key 'optimiser'; expected batch, .* or optimizer \(did you"),
        ("__class__=x", "unknown key '__class__'"),
        ("node.2.ram", "is no change"),
        ("node.-2.ram=1", "is no change"),
        ("-node.x", "is no change"),
        ("", "is no change"),
    ],
)
def test_what_is_malformed_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_change(text)
    assert repr(text) in caught.value.message


def test_what_is_no_change_gets_all_forms() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_change("faster")
    assert caught.value.hint is not None
    assert all(form in caught.value.hint for form in ("node.2.ram=16", "+node", "optimizer=SGD"))


def test_two_changes_of_one_thing_are_refused() -> None:
    with pytest.raises(ConfigError, match="change the same thing"):
        parse_changes(["node.2.ram=16", "batch=2", "node.2.ram=8"])
    with pytest.raises(ConfigError, match="change the same thing"):
        parse_changes(["batch=2x", "batch=8"])
    added = parse_changes(["+node ram=1,bandwidth=1"] * 2)
    assert len(added) == 2


NUMBERS = st.floats(1e-6, 1e12).map(lambda value: float(f"{value:g}"))
CHANGES = st.one_of(
    st.builds(NodeChanged, st.integers(0, 2**62), st.sampled_from(NodeField), NUMBERS),
    st.builds(NodeRemoved, st.integers(0, 2**62)),
    st.builds(
        lambda values: NodeAdded(tuple(zip(NodeField, values, strict=True))),
        st.lists(NUMBERS, min_size=4, max_size=4),
    ),
    st.builds(BatchChanged, st.integers(1, 99999).map(float), st.booleans()),
)


@given(CHANGES)
def test_a_change_is_read_as_it_is_shown(change: Change) -> None:
    assert parse_change(str(change)) == change


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusal = None
    try:
        parse_change(text)
    except ConfigError as error:
        refusal = error
    assert refusal is None or repr(text) in refusal.message
