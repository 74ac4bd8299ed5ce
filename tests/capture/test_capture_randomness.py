"""The same operator draws the same numbers however the model is cut."""

from __future__ import annotations

import pytest
import torch
from capture_chain import even_cuts, random_positions, through_files, train_chain
from capture_zoo import call, captured


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_dropout_is_identical_for_1_2_and_3_stages(name: str) -> None:
    args, kwargs = call(name)
    results = [
        train_chain(through_files(captured(name), even_cuts(captured(name), n)), args, kwargs)
        for n in (1, 2, 3)
    ]
    first = results[0]
    for other in results[1:]:
        for stage_name, gradient in first.gradients.items():
            torch.testing.assert_close(other.gradients[stage_name], gradient, rtol=0, atol=0)


def test_every_random_operator_asks_for_its_seed_once_and_in_order() -> None:
    asked: list[int] = []
    (stage,) = through_files(captured("gpt"), [])
    state = {**stage.parameters, **stage.buffers, **stage.constants}
    args, kwargs = call("gpt")
    inputs = stage.signature.bind(args, kwargs)
    stage.train(state, inputs, asked.append)
    assert asked == random_positions(captured("gpt"))
    drawing = [str(captured("gpt").train.computing[position].target) for position in asked]
    dropout, attention = "aten.dropout.default", "aten.scaled_dot_product_attention.default"
    assert drawing == [dropout, attention, dropout, attention, dropout]
    assert len(set(asked)) == 5

    asked.clear()
    stage.eval(state, inputs, asked.append)
    assert asked == []


def test_without_seeding_dropout_differs_between_calls() -> None:
    (stage,) = through_files(captured("mlp"), [])
    inputs = stage.signature.bind(*call("mlp"))
    one, two = (stage.train(stage.parameters, inputs, lambda _: None) for _ in range(2))
    assert not torch.equal(one["output_0"], two["output_0"])
