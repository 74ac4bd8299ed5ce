"""Executes one stage's schedule: which frame to await, what to compute, what to send on.

The one-way flow of a microbatch: `forward` (from the root's script, or from an activation frame),
then, when the schedule says so, `_backward` with the gradient of the next stage, then `_step`.
All of it runs in the thread that calls `Trainer.train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ravnest.node.batches import UntrainedBatches
from ravnest.node.clipping import GradientClipping
from ravnest.node.journal import RunJournal
from ravnest.node.ledger import Entry, Ledger
from ravnest.node.links import ClusterLinks
from ravnest.node.memory import MemoryWatch
from ravnest.node.reconciling import Reconciliation
from ravnest.node.rounds import RoundKeeper
from ravnest.node.staleness import StalenessContract
from ravnest.node.targets import check_loss
from ravnest.node.tying import TiedParameters
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.actions import Action, ActionKind, Progress, next_action
from ravnest.stage.copying import HostNumber
from ravnest.stage.engine import LossFunction, StageEngine
from ravnest.stage.position import StagePosition
from ravnest.stage.program import Value
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
    clipping: GradientClipping | None
    memory: MemoryWatch
    ledger: Ledger
    reconciliation: Reconciliation


@dataclass(frozen=True, slots=True)
class _PendingLoss:
    """A loss of the leaf, before its backward pass.

    Attributes:
        frame: of the microbatch, without its tensors.
        step: that its gradient is for.
    """

    number: HostNumber
    frame: Frame
    step: int


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
        self._clipping = parts.clipping
        self._memory = parts.memory
        self._ledger = parts.ledger
        self._reconciliation = parts.reconciliation
        self._loss_of = loss_of
        self._progress = Progress()
        self._losses: dict[MicrobatchId, _PendingLoss] = {}
        self._entries: dict[MicrobatchId, Entry] = {}
        self._staleness = StalenessContract(parts.position)
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

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight."""
        return self._progress.forwards == self._progress.completed

    def unmatched_groups(self, patterns: Iterable[str]) -> list[str]:
        """Patterns of parameter groups that match no name of this stage."""
        return self._engine.updater.unmatched(patterns)

    def advance(self) -> None:
        """Does every action that comes before the next forward pass."""
        while (action := next_action(self._position, self._progress)) is not None:
            if action.kind is ActionKind.FORWARD:
                return
            self._perform(action)

    def settle(self) -> None:
        """Completes all that is in flight, in the middle of an epoch.

        The stages then have the weights of one step. An incomplete group of microbatches waits for
        its others, and the versions that microbatches to come would have met are held for them: to
        training it is as if nothing had been.
        """
        frequency = self._position.update_frequency
        self._progress = replace(self._progress, total=self._progress.forwards)
        while (action := next_action(self._position, self._progress)) is not None:
            is_step = action.kind is ActionKind.STEP
            if is_step and self._progress.completed < (action.number + 1) * frequency:
                break
            if is_step:
                self._engine.weights.hold()
            self._perform(action)
        self._progress = replace(self._progress, total=None)

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
            self._staleness.begin_epoch(self._engine.weights.number)
        version = self._staleness.choose(microbatch)
        self._engine.weights.drop_held(before=version)
        frame = self._tied.before_pass(frame, version)
        if self._clipping is not None:
            frame = self._clipping.before_pass(frame)
        self._entries[microbatch] = entry = Entry.of(frame)
        self._ledger.take(entry)
        results = self._compute(microbatch, frame, targets, version)
        if self._loss_of is None:
            self._links.send_forward(stage_frame(frame, self._own_copies(frame, results)))
        else:
            self._losses[microbatch] = _PendingLoss(
                HostNumber(torch.as_tensor(results.get("loss", 0.0))),
                replace(frame, tensors={}),
                self._engine.weights.number,
            )
        self.num_forwards += 1
        self._progress = replace(self._progress, forwards=self._progress.forwards + 1)

    def finish_epoch(self, end: Frame, untrained: UntrainedBatches | None = None) -> None:
        """Completes the epoch: all backward passes, the last step, the ledger, averaging.

        Args:
            end: the root's EPOCH_END frame.
            untrained: on the root, what its loader had and the script did not train on.
        """
        self._progress = replace(self._progress, total=self._progress.forwards)
        self.advance()
        self._reconciliation.end_epoch(self.epoch, end, untrained)
        if self._progress.forwards == 0:
            self._progress = Progress()
            return
        self._engine.weights.forget_previous()
        self._engine.weights.drop_held()
        self._engine.updater.end_epoch()
        self._rounds.after_epoch()
        self._tied.mark_averaged()
        self._journal.epoch_ended(self.epoch, self._progress.forwards)
        self._progress = Progress()
        self.epoch += 1

    def _perform(self, action: Action) -> None:
        microbatch = MicrobatchId(self.epoch, action.number)
        match action.kind:
            case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT:
                self._backward(microbatch)
            case ActionKind.BACKWARD_WEIGHT:
                with self._memory.during(f"the backward pass of microbatch {microbatch}"):
                    self._engine.backward_weight(microbatch)
            case ActionKind.STEP:
                self._step()
        self._progress = self._progress.after(action)

    def _compute(
        self, microbatch: MicrobatchId, frame: Frame, targets: Any, version: int
    ) -> Mapping[str, Value]:
        if not self._entries[microbatch].rows.num_samples:
            return {}
        loss_function = self._loss_of(frame, targets) if self._loss_of is not None else None
        inputs = {**frame.scalars, **frame.tensors}
        with self._memory.during(f"the forward pass of microbatch {microbatch}"):
            return self._engine.forward(microbatch, inputs, loss_function, version)

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
        entry = self._entries.pop(microbatch)
        rows = entry.rows
        received = None if self._loss_of is not None else self._links.receive_gradient(microbatch)
        version = self._staleness.check(microbatch, self._engine.weights.number, received)
        gradients: Mapping[str, torch.Tensor] = {}
        if rows.num_samples:
            self._journal.gradient_made(self._engine.weights.number - version)
            splits = self._position.splits_backward
            compute = self._engine.backward_input if splits else self._engine.backward
            with self._memory.during(f"the backward pass of microbatch {microbatch}"):
                gradients = compute(microbatch, None if received is None else received.tensors)
        loss = self._loss_of_backward(microbatch, received)
        self._links.send_backward(
            Frame(
                FrameKind.GRADIENT,
                microbatch,
                weight_version=version,
                tensors=gradients,
                scalars={"loss": loss},
            )
        )
        self._ledger.complete(entry)
        self._rounds.count_samples(rows.num_samples)
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        self._batch_loss += loss
        self.num_backwards += 1
        if rows.stop == rows.total and rows.num_samples:  # the last that is not empty
            self._journal.batch_trained(self._batch_loss, rows.total)
            self._batch_loss = 0.0

    def _loss_of_backward(self, microbatch: MicrobatchId, received: Frame | None) -> float:
        """The loss of a microbatch; on the leaf not asked for before its backward pass is launched.

        Raises:
            TrainingError: it is not finite.
        """
        if received is not None:
            return float(received.scalars["loss"] or 0.0)
        pending = self._losses.pop(microbatch)
        loss = pending.number.value()
        if self._engine.loss_scale is None:  # else its step is left out
            check_loss(loss, pending.frame, pending.step)
        return loss

    def _step(self) -> None:
        self._tied.before_step()
        norm = None if self._clipping is None else self._clipping.before_step()
        is_left_out = norm is not None and not math.isfinite(norm)
        with self._memory.during(f"optimizer step {self._engine.weights.number}"):
            self._engine.step(is_left_out=is_left_out)
        self._ledger.step(self._engine.weights.number, is_left_out=is_left_out)
        self._journal.step_made(self._engine.weights.number, self._step_loss or 0.0, norm)
        self._step_loss = None
        self._rounds.after_step()
        self._tied.mark_averaged()


def stage_frame(received: Frame, results: Mapping[str, Value]) -> Frame:
    """The frame for the next stage: the same microbatch, with this stage's outputs."""
    tensors = {name: value for name, value in results.items() if isinstance(value, torch.Tensor)}
    scalars = {name: value for name, value in results.items() if name not in tensors}
    return replace(received, tensors=tensors, scalars=scalars)
