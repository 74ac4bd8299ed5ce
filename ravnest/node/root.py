"""What only the root of a cluster does: feeds batches in, ends epochs and phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ravnest.capture.signature import InputSignature
from ravnest.errors import ConfigError, TrainingError
from ravnest.node.batches import (
    BatchCursor,
    CurrentBatch,
    batch_frame,
    num_samples_of,
    shipped_targets,
    targets_frame,
)
from ravnest.node.microbatches import Rows, split_inputs, take_rows, whole_batch
from ravnest.node.parts import NodeParts
from ravnest.node.settings import RunSettings
from ravnest.node.targets import Metric
from ravnest.plan.model import NodePlan
from ravnest.plan.structure import flatten
from ravnest.stage.groups import refuse_unmatched
from ravnest.wire.frame import Frame, FrameKind

OUTPUT_TYPES = (None, "output", "accuracy", "val_accuracy")


class RootDriver:
    """Drives one cluster. On other nodes it exists too, and refuses to drive.

    Args:
        signature: how a batch becomes the graph's inputs; None on nodes that are no root.
        ships_train: send targets along in training, because the leaf has no labels.
        ships_test: the same in evaluation.
    """

    def __init__(
        self,
        plan: NodePlan,
        parts: NodeParts,
        settings: RunSettings,
        signature: InputSignature | None,
        *,
        ships_train: bool,
        ships_test: bool,
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._settings = settings
        self._signature = signature
        self._ships_train = ships_train
        self._ships_test = ships_test
        self._announced = False
        self._metric_name = "accuracy"
        self._is_validation = False
        self.train_cursor: BatchCursor | None = None
        self.test_cursor: BatchCursor | None = None
        self.inputs_dtype: torch.dtype | None = None

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the model's inputs that the example call had, in order."""
        if self._signature is None:
            return ()
        return tuple(a.name for a in self._signature.arguments if a.value is not None)

    def forward(self, tensors: Any, kwargs: Mapping[str, Any]) -> None:
        """Sends one training batch on its way, after what the schedule puts before it."""
        signature = self._require_root("forward_compute")
        self._begin()
        args = _positional(tensors)
        current = self.train_cursor.take() if self.train_cursor is not None else None
        inputs = signature.bind(self._cast(args), self._cast_all(kwargs))
        targets = None
        if current is not None and self._ships_train:
            targets = shipped_targets(current.batch, _leaves(args, kwargs))
        number = self._settings.microbatches_per_batch
        if number == 1:
            self._forward_rows(
                whole_batch(num_samples_of(inputs.values())), inputs, current, targets
            )
            return
        for rows, part in split_inputs(signature, inputs, number):
            self._forward_rows(rows, part, current, targets)

    def _forward_rows(
        self,
        rows: Rows,
        inputs: Mapping[str, torch.Tensor],
        current: CurrentBatch | None,
        targets: Any,
    ) -> None:
        """Sends one microbatch on its way, after what the schedule puts before it."""
        pipeline, links = self._parts.pipeline, self._parts.links
        pipeline.advance()
        targets = take_rows(targets, rows) if rows.num_samples else None
        frame = batch_frame(
            FrameKind.ACTIVATION,
            pipeline.next_microbatch,
            inputs if rows.num_samples else {},
            current,
            rows,
            batch=pipeline.next_microbatch.index // self._settings.microbatches_per_batch,
            targets=targets is not None and not self._plan.is_leaf,
        )
        if targets is not None and not self._plan.is_leaf:
            assert frame.microbatch is not None
            links.send_targets(targets_frame(frame.microbatch, targets))
        pipeline.forward(frame, targets)

    def evaluate(self, tensors: Any, kwargs: Mapping[str, Any], output_type: str | None) -> Any:
        """Evaluates one batch; returns the model's output when that is what is asked for."""
        if output_type not in OUTPUT_TYPES:
            raise ConfigError(
                f"output_type={output_type!r} is unknown; expected one of "
                + ", ".join(map(repr, OUTPUT_TYPES))
            )
        signature = self._require_root("no_grad_forward_compute")
        self._begin(evaluating=True)
        self._settle()
        args = _positional(tensors)
        wants_output = output_type in (None, "output")
        self._is_validation = output_type == "val_accuracy"
        current: CurrentBatch | None = None
        if self.test_cursor is not None and not wants_output:
            current = self.test_cursor.take()
        return self._parts.evaluator.submit(
            signature.bind(self._cast(args), self._cast_all(kwargs)),
            current,
            wants_output=wants_output,
            raw_inputs=_leaves(args, kwargs),
            ship=self._ships_test,
        )

    def end_epoch(self) -> None:
        """Completes the epoch on every stage."""
        self._require_root("wait_for_backwards")
        self._begin()
        end = self._parts.reconciliation.announcement()
        self._parts.links.send_forward(end)
        untrained = None if self.train_cursor is None else self.train_cursor.take_untrained()
        self._parts.pipeline.finish_epoch(end, untrained)

    def complete(self) -> None:
        """Does everything the schedule allows before another batch comes."""
        if self._announced:
            self._parts.pipeline.advance()

    def save(self) -> None:
        """Has every node of the cluster save its sub-model, without ending the epoch.

        All nodes save the weights of the same step.
        """
        self._require_root("trigger_save_submodel")
        self._begin()
        self._settle()
        self._parts.links.send_forward(Frame(FrameKind.SAVE))
        self._save_own()

    def close_evaluation(self) -> dict[str, Any]:
        """Ends an evaluation pass; its metric and number of samples, empty without a pass."""
        result = self._parts.evaluator.close_pass()
        if result is None:
            return {}
        value, num_samples = result
        self._parts.journal.evaluated(
            self._metric_name, value, num_samples, validation=self._is_validation
        )
        return {self._metric_name: value, "num_samples": num_samples}

    def end_phase(self, *, training: bool, save: bool) -> dict[str, Any]:
        """Ends a phase for every stage: open work is completed, results are announced.

        Training ends with the averaging that makes all clusters equal, and only then saves.
        """
        self._require_root("end_phase")
        self._begin(evaluating=True)
        if not self._parts.pipeline.is_idle:
            self.end_epoch()
        results = self.close_evaluation()
        details = {"training": training, "save": save, "results": results}
        self._parts.links.send_forward(Frame(FrameKind.PHASE_END, details=details))
        if training:
            self._parts.rounds.finish()
            self._parts.tied.finish()
        if save:
            self._save_own()
        return results

    def _save_own(self) -> None:
        self._parts.saver.save()
        state = None if self.train_cursor is None else self.train_cursor.loader_state()
        if state is not None:
            self._parts.saver.save_loader(state, epoch=self._parts.pipeline.epoch)

    def set_metric(self, metric: Metric) -> None:
        """Sets the metric on the leaf, and its name in results on the root."""
        self._metric_name = getattr(metric, "__name__", type(metric).__name__)
        leaf = self._parts.evaluator.leaf
        if leaf is not None:
            self._parts.evaluator.leaf = type(leaf)(metric, leaf.finder, leaf.output_structure)

    def _begin(self, *, evaluating: bool = False) -> None:
        if not self._announced:
            details: dict[str, Any] = {
                "settings": self._settings.announcement(),
                "seed": self._parts.randomness.run_seed,
                "unmatched": self._parts.engine.updater.unmatched(),
            }
            if self._plan.is_leaf:
                refuse_unmatched(details["unmatched"])
            self._parts.links.send_forward(Frame(FrameKind.RUN, details=details))
            self._announced = True
        if not evaluating:
            self.close_evaluation()

    def _settle(self) -> None:
        """Brings all stages to the weights of one step: the schedule does, if it flushes."""
        pipeline = self._parts.pipeline
        pipeline.advance()
        if self._settings.schedule.is_flushed or pipeline.is_settled:
            return
        self._parts.links.send_forward(Frame(FrameKind.SETTLE))
        pipeline.settle()

    def _require_root(self, what: str) -> InputSignature:
        if self._signature is None:
            raise TrainingError(
                f"{what} was called on node {self._plan.node_id}, the {self._plan.role} of its "
                "cluster; only the root feeds batches in",
                hint="override Trainer.train(): its body runs on the root alone",
            )
        return self._signature

    def _cast(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item) for item in value)
        return self._cast_all(value) if isinstance(value, dict) else self._cast_one(value)

    def _cast_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._cast(value) for name, value in values.items()}

    def _cast_one(self, value: Any) -> Any:
        if self.inputs_dtype is None or not isinstance(value, torch.Tensor):
            return value
        return value.to(self.inputs_dtype) if value.is_floating_point() else value


def _positional(tensors: Any) -> tuple[Any, ...]:
    if tensors is None:
        return ()
    return tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)


def _leaves(args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    return flatten((args, dict(kwargs)))[0]
