"""Executes one stage's schedule: which frame to await, what to compute, what to send on.

The one-way flow of a microbatch: `forward` (from the root's script, or from an activation frame),
then, when the schedule says so, `_backward` with the gradient of the next stage, then `_step`.
All of it runs in the thread that calls `Trainer.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ravnest.node.journal import RunJournal
from ravnest.node.links import ClusterLinks
from ravnest.node.microbatches import Rows
from ravnest.node.rounds import RoundKeeper
from ravnest.node.tying import TiedParameters
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.engine import LossFunction, StageEngine
from ravnest.stage.program import Value
from ravnest.stage.schedule import ActionKind, Progress, StagePosition, next_action
from ravnest.wire.frame import Frame, FrameKind

LossOfMicrobatch = Callable[[Frame, Any], LossFunction]


@dataclass(frozen=True, slots=True)
class StageParts:
    """What the pipeline of one stage works with."""

    engine: StageEngine
    links: ClusterLinks
    rounds: RoundKeeper
    journal: RunJournal
    position: StagePosition
    tied: TiedParameters


class StagePipeline:
    """One stage of one cluster in training.

    Args:
        loss_of: on the leaf, from the activation frame (and the targets at hand on a lone
            node) to the function from outputs to loss; None elsewhere.
    """

    def __init__(self, parts: StageParts, loss_of: LossOfMicrobatch | None) -> None:
        self._engine = parts.engine
        self._links = parts.links
        self._rounds = parts.rounds
        self._journal = parts.journal
        self._position = parts.position
        self._tied = parts.tied
        self._loss_of = loss_of
        self._progress = Progress()
        self._losses: dict[MicrobatchId, float] = {}
        self._rows: dict[MicrobatchId, Rows] = {}
        self._batch_loss = 0.0
        self._step_loss: float | None = None
        self.epoch = 0
        self.num_forwards = 0
        self.num_backwards = 0

    @property
    def next_microbatch(self) -> MicrobatchId:
        """The id of the microbatch that `forward` takes next."""
        return MicrobatchId(self.epoch, self._progress.forwards)

    @property
    def is_idle(self) -> bool:
        """Whether the epoch has had no microbatch yet."""
        return self._progress.forwards == 0

    def advance(self) -> None:
        """Does every action that comes before the next forward pass."""
        while (action := next_action(self._position, self._progress)) is not None:
            match action.kind:
                case ActionKind.FORWARD:
                    return
                case ActionKind.BACKWARD:
                    self._backward(MicrobatchId(self.epoch, action.number))
                case ActionKind.STEP:
                    self._step()
            self._progress = self._progress.after(action)

    def forward(self, frame: Frame, targets: Any = None) -> None:
        """Forward pass of the next microbatch; its outputs go to the next stage.

        Args:
            frame: an ACTIVATION frame with this stage's inputs.
            targets: on a lone node, the batch's targets.
        """
        microbatch = frame.microbatch
        assert microbatch == self.next_microbatch
        if self.is_idle:
            self._journal.epoch_began(self.epoch)
        frame = self._tied.before_pass(frame)
        self._rows[microbatch] = Rows.of(frame)
        results = self._compute(microbatch, frame, targets)
        if self._loss_of is None:
            self._links.send_forward(stage_frame(frame, self._own_copies(frame, results)))
        else:
            self._losses[microbatch] = float(results.get("loss", 0.0))
        self.num_forwards += 1
        self._progress = replace(self._progress, forwards=self._progress.forwards + 1)

    def finish_epoch(self) -> None:
        """Completes the epoch: all backward passes, the last step, averaging."""
        self._progress = replace(self._progress, total=self._progress.forwards)
        self.advance()
        if self._progress.forwards == 0:
            self._progress = Progress()
            return
        self._engine.updater.end_epoch()
        self._rounds.after_epoch()
        self._tied.mark_changed()
        self._journal.epoch_ended(self.epoch, self._progress.forwards)
        self._progress = Progress()
        self.epoch += 1

    def _compute(self, microbatch: MicrobatchId, frame: Frame, targets: Any) -> Mapping[str, Value]:
        if not self._rows[microbatch].num_samples:
            return {}
        loss_function = self._loss_of(frame, targets) if self._loss_of is not None else None
        return self._engine.forward(microbatch, {**frame.scalars, **frame.tensors}, loss_function)

    def _own_copies(self, frame: Frame, results: Mapping[str, Value]) -> Mapping[str, Value]:
        """On the root, copies of inputs that pass through: the script may fill them anew."""
        if self._position.stage > 0:
            return results
        given = {tensor.data_ptr() for tensor in frame.tensors.values()}
        return {
            name: value.clone()
            if isinstance(value, torch.Tensor) and value.data_ptr() in given
            else value
            for name, value in results.items()
        }

    def _backward(self, microbatch: MicrobatchId) -> None:
        rows = self._rows.pop(microbatch)
        received = None if self._loss_of is not None else self._links.receive_gradient(microbatch)
        if received is None:
            loss = self._losses.pop(microbatch)
        else:
            loss = float(received.scalars["loss"] or 0.0)
        gradients: Mapping[str, torch.Tensor] = {}
        if rows.num_samples:
            gradients = self._engine.backward(
                microbatch, None if received is None else received.tensors
            )
        self._links.send_backward(
            Frame(
                FrameKind.GRADIENT,
                microbatch,
                weight_version=self._engine.weights.number,
                tensors=gradients,
                scalars={"loss": loss},
            )
        )
        self._rounds.count_samples(rows.num_samples)
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        self._batch_loss += loss
        self.num_backwards += 1
        if rows.stop == rows.total and rows.num_samples:  # the last that is not empty
            self._journal.batch_trained(self._batch_loss, rows.total)
            self._batch_loss = 0.0

    def _step(self) -> None:
        self._tied.before_step()
        self._engine.step()
        self._journal.step_made(self._engine.weights.number, self._step_loss or 0.0)
        self._step_loss = None
        self._rounds.after_step()
        self._tied.mark_changed()


def stage_frame(received: Frame, results: Mapping[str, Value]) -> Frame:
    """The frame for the next stage: the same microbatch, with this stage's outputs."""
    tensors = {name: value for name, value in results.items() if isinstance(value, torch.Tensor)}
    scalars = {name: value for name, value in results.items() if name not in tensors}
    return replace(received, tensors=tensors, scalars=scalars)
