"""Loss and metric on the leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ravnest.errors import ConfigError, TrainingError
from ravnest.node.batches import shipped_targets, targets_frame
from ravnest.node.targets import accuracy, compute_loss, restore_targets
from ravnest.plan.identity import MicrobatchId
from ravnest.plan.structure import Record

LOGITS = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [1.0, 2.0]])
CLASSES = torch.tensor([0, 1, 1, 1])
ONE_HOT = torch.nn.functional.one_hot(CLASSES, 2)


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [
        (LOGITS, CLASSES),
        (LOGITS, (None, CLASSES)),
        (LOGITS, [torch.zeros(4), ONE_HOT]),
        (LOGITS, {"labels": CLASSES}),
        ((LOGITS, torch.zeros(1)), CLASSES),
        (Record(loss=torch.ones(1), logits=LOGITS), CLASSES),
        ({"logits": LOGITS}, ONE_HOT.float()),
        (LOGITS.unsqueeze(2).expand(4, 2, 3), CLASSES.unsqueeze(1).expand(4, 3)),
    ],
)
def test_accuracy_takes_the_usual_forms(predictions: Any, targets: Any) -> None:
    assert accuracy(predictions, targets) == 0.75


def test_accuracy_names_shapes_that_do_not_fit() -> None:
    with pytest.raises(TrainingError, match=r"shape \(4, 2\) with targets of shape \(3,\)"):
        accuracy(LOGITS, CLASSES[:3])
    with pytest.raises(TrainingError, match="no target classes in a batch of type dict"):
        accuracy(LOGITS, {"other": CLASSES})


def test_a_model_that_returns_its_loss_needs_no_criterion() -> None:
    loss = torch.ones((), requires_grad=True)
    assert compute_loss(None, loss, None) is loss
    assert compute_loss(None, Record(loss=loss), None) is loss
    with pytest.raises(ConfigError, match="the leaf has no criterion"):
        compute_loss(None, LOGITS, None)


def test_a_criterion_without_targets_is_explained() -> None:
    with pytest.raises(TrainingError, match="the criterion got no targets"):
        compute_loss(lambda p, t: t[1].sum(), LOGITS, None)
    with pytest.raises(TypeError, match="own fault"):
        compute_loss(_raises_type_error, LOGITS, (None, CLASSES))


def _raises_type_error(predictions: Any, targets: Any) -> torch.Tensor:
    raise TypeError("own fault")


def test_inputs_are_not_shipped_again() -> None:
    x, y = torch.zeros(2, 3), torch.ones(2)
    assert shipped_targets([x, y], [x])[0] is None
    assert shipped_targets([x, y], [x])[1] is y
    assert shipped_targets({"x": x, "labels": y}, [x]) == {"x": None, "labels": y}
    assert shipped_targets({"x": x}, [x]) == {"x": x}, "then the inputs are the targets"
    assert shipped_targets(x, [x]) is x


def test_targets_survive_the_wire_with_their_nesting() -> None:
    batch = {"a": [torch.arange(3), 5, "text", None], "b": (torch.ones(2), 1.5, True)}
    frame = targets_frame(MicrobatchId(0, 0), batch)
    back = restore_targets(frame)
    assert back["a"][0].tolist() == [0, 1, 2]
    assert back["a"][1:] == [5, "text", None]
    assert back["b"][1:] == (1.5, True)
