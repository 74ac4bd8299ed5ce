"""Gradients leave a stage as the operators made them."""

from __future__ import annotations

import torch

from ravnest.stage.entrance import Entrance


def test_gradients_keep_their_order_in_memory() -> None:
    values = torch.randn(2, 3, 4, 5)
    entrance = Entrance()
    admitted = entrance.admit("x", values)
    assert admitted.data_ptr() == values.data_ptr()
    weights = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    admitted.backward(weights)
    assert torch.equal(entrance.gradients["x"], weights)
    assert entrance.gradients["x"].stride() == weights.stride()
    leaf = values.clone().requires_grad_()
    leaf.backward(weights)
    assert leaf.grad is not None
    assert leaf.grad.stride() == values.stride(), "which is why there is no leaf"


def test_only_inputs_that_lead_to_the_loss_have_one() -> None:
    entrance = Entrance()
    used, other = (entrance.admit(name, torch.ones(3)) for name in ("used", "other"))
    assert other.requires_grad
    (used * 2 + used).sum().backward()
    assert list(entrance.gradients) == ["used"]
    assert torch.equal(entrance.gradients["used"], torch.full((3,), 3.0))
