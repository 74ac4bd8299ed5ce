"""Stages loaded from files compute what the original model computes in one process."""

from __future__ import annotations

import copy

import pytest
import torch
from capture_chain import (
    assert_same,
    eval_chain,
    even_cuts,
    through_files,
    train_chain,
    train_original,
)
from capture_zoo import CASES, build, call, captured

EVERY_CUT = ("mlp", "norm_twice", "buffers", "no_grad_ema", "frozen", "dict", "views")
EVERY_CUT += ("modes_differ", "cnn", "several")


def check(name: str, cuts: list[int], batch: int) -> None:
    model, args_kwargs = build(name), call(name, batch, seed=batch)
    args, kwargs = args_kwargs
    stages = through_files(captured(name), cuts)
    assert len(stages) == len(cuts) + 1
    expected = train_original(model, captured(name), args, kwargs)
    actual = train_chain(stages, args, kwargs)
    assert_same(actual.output, expected.output)
    assert actual.gradients.keys() == expected.gradients.keys()
    assert_same(actual.gradients, {n: expected.gradients[n] for n in actual.gradients})
    assert_same(actual.buffers, {n: expected.buffers[n] for n in actual.buffers})

    evaluated = copy.deepcopy(model).eval()
    with torch.no_grad():
        assert_same(
            eval_chain(stages, args, kwargs),
            evaluated(*copy.deepcopy(args), **copy.deepcopy(kwargs)),
        )


@pytest.mark.parametrize("batch", [4, 3])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_stages_equal_the_model(name: str, num_stages: int, batch: int) -> None:
    check(name, even_cuts(captured(name), num_stages), batch)


@pytest.mark.parametrize("name", EVERY_CUT)
def test_every_single_cut_equals_the_model(name: str) -> None:
    for cut in captured(name).costs.cuts:
        check(name, [cut.position], 3)


def test_cutting_at_every_legal_position_at_once_equals_the_model() -> None:
    for name in ("mlp", "unet", "gpt"):
        check(name, [cut.position for cut in captured(name).costs.cuts], 2)


@pytest.mark.parametrize("name", ["mlp", "gpt", "unet", "dict", "several"])
def test_a_last_batch_of_one_runs(name: str) -> None:
    check(name, even_cuts(captured(name), 2), 1)


@pytest.mark.parametrize("name", CASES)
def test_state_dict_of_all_stages_is_the_models(name: str) -> None:
    model, stages = build(name), through_files(captured(name), even_cuts(captured(name), 3))
    merged: dict[str, torch.Tensor] = {}
    for stage in stages:
        owned = stage.parameters | stage.buffers
        assert not owned.keys() & merged.keys()  # one owner each
        merged |= owned
    state = captured(name).state
    merged |= {alias: merged[stored] for alias, stored in state.aliases.items()}
    assert state.state_names == tuple(model.state_dict())
    merged = {key: merged[key] for key in state.state_names}
    model.load_state_dict(merged, strict=True)
    assert_same(merged, dict(build(name).state_dict()))


def test_a_gradient_reaches_a_skip_over_two_stages() -> None:
    stages = through_files(captured("unet"), even_cuts(captured("unet"), 3))
    passed = {s.name for s in stages[1].train.inputs} & {s.name for s in stages[1].train.outputs}
    assert passed, "the case has no value that passes through the middle stage"


def test_user_batch_is_not_written() -> None:
    x = torch.randn(4, 8)
    before = x.clone()
    train_chain(through_files(captured("views"), []), (x,), {})
    assert torch.equal(x, before)
