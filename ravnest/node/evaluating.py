"""Evaluation over a cluster: the root sends batches, the leaf answers with metrics or outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.node.batches import (
    CurrentBatch,
    batch_frame,
    num_samples_of,
    shipped_targets,
    targets_frame,
)
from ravnest.node.devices import moved
from ravnest.node.links import ClusterLinks
from ravnest.node.microbatches import whole_batch
from ravnest.node.pipeline import stage_frame
from ravnest.node.targets import (
    Metric,
    TargetFinder,
    predictions_of,
    restore_targets,
)
from ravnest.node.tying import TiedParameters
from ravnest.plan.identity import MicrobatchId
from ravnest.plan.structure import Structure, flatten
from ravnest.stage.engine import StageEngine
from ravnest.wire.frame import Frame, FrameKind


@dataclass(frozen=True, slots=True)
class LeafEvaluation:
    """What the leaf needs to answer."""

    metric: Metric
    finder: TargetFinder
    output_structure: Structure | None


@dataclass(slots=True)
class _Pass:
    """One evaluation pass on the root."""

    number: int
    sent: int = 0
    weighted_sum: float = 0.0
    num_samples: int = 0


class StageEvaluator:
    """Evaluation on one stage.

    Args:
        leaf: None on nodes that are no leaf.
        max_outstanding: batches the root sends ahead of the answers it has taken.
    """

    def __init__(
        self,
        engine: StageEngine,
        links: ClusterLinks,
        tied: TiedParameters,
        leaf: LeafEvaluation | None,
        *,
        max_outstanding: int,
        device: torch.device,
    ) -> None:
        self._engine = engine
        self._links = links
        self._tied = tied
        self.leaf = leaf
        self._max_outstanding = max_outstanding
        self._device = device
        self._pass: _Pass | None = None
        self._num_passes = 0
        self._outstanding: deque[MicrobatchId] = deque()

    def serve(self, frame: Frame) -> None:
        """On stem and leaf: computes an EVALUATE frame and passes it on, or answers it."""
        frame = self._tied.before_pass(frame)
        assert frame.microbatch is not None
        outputs = self._engine.evaluate(frame.microbatch, {**frame.scalars, **frame.tensors})
        if self.leaf is None:
            self._links.send_forward(stage_frame(frame, outputs))
        else:
            self._links.send_result(self._answer(self.leaf, frame, outputs))

    def submit(
        self,
        inputs: dict[str, Any],
        current: CurrentBatch | None,
        *,
        wants_output: bool,
        raw_inputs: Sequence[Any],
        ship: bool,
    ) -> Any:
        """On the root: evaluates one batch.

        Returns:
            The model's output when wanted, else None; metrics come from `close_pass`.
        """
        if self._pass is None:
            self._pass = _Pass(self._num_passes)
            self._num_passes += 1
        microbatch = MicrobatchId(self._pass.number, self._pass.sent)
        self._pass.sent += 1
        targets = None
        if current is not None and ship and not wants_output:
            targets = shipped_targets(current.batch, raw_inputs)
        frame = batch_frame(
            FrameKind.EVALUATE,
            microbatch,
            inputs,
            current,
            whole_batch(num_samples_of(inputs.values())),
            batch=microbatch.index,
            targets=targets is not None,
            wants_output=wants_output,
        )
        frame = self._tied.before_pass(frame)
        outputs = self._engine.evaluate(microbatch, inputs)
        if self.leaf is not None:
            return self._take(self._answer(self.leaf, frame, outputs, local=targets))
        self._links.send_forward(stage_frame(frame, outputs))
        if targets is not None:
            self._links.send_targets(targets_frame(microbatch, targets))
        self._outstanding.append(microbatch)
        if wants_output:
            return self._collect(down_to=0)
        return self._collect(down_to=self._max_outstanding)

    def close_pass(self) -> tuple[float, int] | None:
        """On the root: mean metric and number of samples of the pass; None when none was open."""
        if self._pass is None:
            return None
        self._collect(down_to=0)
        finished, self._pass = self._pass, None
        if finished.num_samples == 0:
            return None
        return finished.weighted_sum / finished.num_samples, finished.num_samples

    def _collect(self, down_to: int) -> Any:
        output = None
        while len(self._outstanding) > down_to:
            output = self._take(self._links.receive_result(self._outstanding.popleft()))
        return output

    def _take(self, answer: Frame) -> Any:
        assert self._pass is not None
        if "structure" in answer.details:
            return moved(restore_targets(answer), self._device)
        num_samples = int(answer.details["num_samples"])
        self._pass.weighted_sum += float(answer.scalars["metric"] or 0.0) * num_samples
        self._pass.num_samples += num_samples
        return None

    def _answer(
        self, leaf: LeafEvaluation, frame: Frame, outputs: dict[str, Any], local: Any = None
    ) -> Frame:
        predictions = predictions_of(outputs, leaf.output_structure)
        if frame.details["wants_output"]:
            _, structure = flatten(predictions)
            named = {name.removeprefix("output_"): value for name, value in outputs.items()}
            answered = stage_frame(frame, named)
            return Frame(
                FrameKind.OUTPUT,
                frame.microbatch,
                tensors=answered.tensors,
                scalars=answered.scalars,
                details={"structure": structure},
            )
        value = float(leaf.metric(predictions, leaf.finder.find(frame, local)))
        return Frame(
            FrameKind.OUTPUT,
            frame.microbatch,
            scalars={"metric": value},
            details={"num_samples": frame.details["num_samples"]},
        )
