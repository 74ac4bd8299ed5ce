"""What a leaf alone has: the loss of a microbatch, and how it answers in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ravnest.node.evaluating import LeafEvaluation
from ravnest.node.labels import label_source
from ravnest.node.links import ClusterLinks
from ravnest.node.microbatches import Rows
from ravnest.node.parts import NodeInputs
from ravnest.node.pipeline import LossOfMicrobatch
from ravnest.node.targets import (
    TargetFinder,
    accuracy,
    compute_loss,
    naming_shapes,
    predictions_of,
)
from ravnest.stage.engine import LossFunction
from ravnest.stage.program import Value
from ravnest.wire.frame import Frame


def leaf_loss(inputs: NodeInputs, links: ClusterLinks) -> LossOfMicrobatch | None:
    """From a frame that begins a forward pass to its loss; None on nodes that are no leaf.

    Raises:
        ConfigError: `labels` can be no source of targets.
    """
    if not inputs.plan.is_leaf:
        return None
    finder = _finder(inputs, links, inputs.labels, "labels")
    # Not `inputs` itself, which would keep the stage's initial tensors for as long as it trains.
    criterion, is_mean = inputs.criterion, inputs.is_mean
    structure = inputs.stage.train.output_structure

    def loss_of(frame: Frame, local: Any) -> LossFunction:
        targets = finder.find(frame, local)
        share = Rows.of(frame).share if is_mean else 1.0

        def loss(outputs: Mapping[str, Value]) -> torch.Tensor:
            predictions = predictions_of(outputs, structure)
            with naming_shapes(frame, predictions, targets):
                found = compute_loss(criterion, predictions, targets)
            return found if share == 1.0 else found * share

        return loss

    return loss_of


def leaf_evaluation(inputs: NodeInputs, links: ClusterLinks) -> LeafEvaluation | None:
    """What evaluation needs, with accuracy as the metric; None on nodes that are no leaf.

    Raises:
        ConfigError: `test_labels` can be no source of targets.
    """
    if not inputs.plan.is_leaf:
        return None
    return LeafEvaluation(
        metric=accuracy,
        finder=_finder(inputs, links, inputs.test_labels, "test_labels"),
        output_structure=inputs.stage.eval.output_structure,
    )


def _finder(inputs: NodeInputs, links: ClusterLinks, labels: Any, name: str) -> TargetFinder:
    source = label_source(labels, name, f"node {inputs.plan.node_id}, the leaf,")
    return TargetFinder(source, links, inputs.device)
