"""The leaf's side of a microbatch: finds its targets, computes a loss or a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ravnest.errors import ConfigError, RavnestError, TrainingError
from ravnest.node.devices import moved
from ravnest.node.fingerprint import check_fingerprint
from ravnest.node.labels import BatchAddress, LabelSource
from ravnest.node.links import ClusterLinks
from ravnest.node.microbatches import Rows, take_rows
from ravnest.plan.structure import Structure, flatten, unflatten
from ravnest.stage.program import Value
from ravnest.stage.running_out import is_out_of_memory
from ravnest.wire.frame import Frame

Criterion = Callable[[Any, Any], torch.Tensor]
Metric = Callable[[Any, Any], float]


def batch_address(frame: Frame) -> BatchAddress:
    """Where a microbatch's batch is found in the data, as the root says in its frame."""
    microbatch = frame.microbatch
    assert microbatch is not None
    details = frame.details
    return BatchAddress(
        epoch=microbatch.epoch,
        index=int(details["batch"]),
        num_samples=Rows.of(frame).total,
        batch_size=details.get("batch_size"),
        after_whole_pass=bool(details["after_whole_pass"]),
        num_batches=details.get("num_batches"),
        loader_epoch=details.get("loader_epoch"),
    )


def predictions_of(outputs: Mapping[str, Value], structure: Structure | None) -> Any:
    """What the original model's forward returns, rebuilt from the flat outputs of the leaf."""
    leaves = [outputs[f"output_{index}"] for index in range(len(outputs))]
    return unflatten(structure if structure is not None else 0, leaves)


class TargetFinder:
    """Targets of a microbatch: the leaf's own labels if there are any, else what the root shipped.

    Args:
        source: the leaf's `labels` or `test_labels`, None when left out.
        device: targets are moved there.
    """

    def __init__(
        self, source: LabelSource | None, links: ClusterLinks, device: torch.device
    ) -> None:
        self._source = source
        self._links = links
        self._device = device

    def find(self, frame: Frame, local: Any = None) -> Any:
        """The targets of a microbatch, None when nobody has any.

        Args:
            frame: the microbatch's activation or evaluation frame.
            local: on a lone node, the targets the root would have shipped.

        Raises:
            DataOrderError: the leaf's batch of that number is not the root's.
        """
        shipped = self._shipped(frame) if local is None else local
        if self._source is None:
            return moved(shipped, self._device)
        address = batch_address(frame)
        batch = self._source.batch(address)
        check_fingerprint(
            frame.details.get("fingerprint", ()), batch, epoch=address.epoch, index=address.index
        )
        return moved(take_rows(batch, Rows.of(frame)), self._device)

    def _shipped(self, frame: Frame) -> Any:
        if not frame.details.get("targets", False):
            return None
        shipped = self._links.receive_targets(frame.microbatch)
        return restore_targets(shipped)


def restore_targets(frame: Frame) -> Any:
    """The batch inside a TARGETS frame."""
    count = len(frame.tensors) + len(frame.scalars)
    leaves: Sequence[Any] = [
        frame.tensors[str(i)] if str(i) in frame.tensors else frame.scalars[str(i)]
        for i in range(count)
    ]
    return unflatten(frame.details["structure"], leaves)


def compute_loss(criterion: Criterion | None, predictions: Any, targets: Any) -> torch.Tensor:
    """The training loss: the criterion's, or the model's own when it returns one.

    Raises:
        ConfigError: there is no criterion and the model returns no loss.
        TrainingError: the criterion needs targets that nobody has.
    """
    if criterion is None:
        loss = getattr(predictions, "loss", None)
        if loss is None and isinstance(predictions, torch.Tensor) and predictions.numel() == 1:
            loss = predictions
        if not isinstance(loss, torch.Tensor):
            raise ConfigError(
                "the leaf has no criterion, and the model returns no loss of its own",
                hint="pass Node(criterion=loss_fn), a function of (predictions, targets)",
            )
        return loss
    try:
        return criterion(predictions, targets)
    except TypeError as error:
        if targets is not None:
            raise
        raise TrainingError(
            "the criterion got no targets: the leaf has no `labels`, and the root shipped none",
            hint="pass Node(labels=loader), or iterate over the trainer's own `self.train_loader`",
        ) from error


@contextmanager
def naming_shapes(frame: Frame, predictions: Any, targets: Any) -> Iterator[None]:
    """Says what the criterion was given where it fails; TrainingError with its error as cause."""
    try:
        yield
    except RavnestError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        lengths = {len(each) for each in _tensors(targets) if each.dim() > 0}
        number = Rows.of(frame).num_samples
        raise TrainingError(
            f"the criterion failed for microbatch {_place(frame)} with {type(error).__name__}: "
            f"{error}; predictions are {_described(predictions)}, targets {_described(targets)}",
            hint=f"the microbatch has {number} samples, its targets {sorted(lengths)}: make them "
            "as many"
            if lengths and number not in lengths
            else "the criterion gets (predictions, targets): what the model returns, and the batch",
        ) from error


def check_loss(loss: float, frame: Frame, step: int) -> None:
    """Raises TrainingError when a loss is not finite: its gradients would ruin every weight.

    Args:
        step: that the microbatch's gradient is for.
    """
    if not math.isfinite(loss):
        raise TrainingError(
            f"the criterion returned {loss} for microbatch {_place(frame)} on the leaf, before "
            f"optimizer step {step}; no weight has been changed by it",
            hint="lower the learning rate, pass Node(clip_grad_norm=1.0), or look at that batch",
        )


def _place(frame: Frame) -> str:
    rows = Rows.of(frame)
    batch = f"samples {rows.start} to {rows.stop} of batch {frame.details['batch']}"
    return f"{frame.microbatch} ({batch})"


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _described(value: Any) -> str:
    """The shapes of all tensors in a value, or what it is."""
    shapes = [f"{tuple(each.shape)} {each.dtype}" for each in _tensors(value)]
    return ", ".join(shapes[:6]) if shapes else type(value).__name__


def accuracy(predictions: Any, targets: Any) -> float:
    """Share of samples whose largest logit is the target's class, in 0 .. 1.

    Args:
        predictions: tensor (N, C, ...), or a container whose `logits` or first item is one.
        targets: class indices (N, ...) or one-hot (N, C, ...); or a batch with them in second place
            or under "labels", "label", "targets" or "target".
    """
    logits = _logits_of(predictions)
    classes = _classes_of(targets).to(logits.device)
    if classes.shape == logits.shape and logits.dim() > 1:
        classes = classes.argmax(dim=1)
    chosen = logits.argmax(dim=1) if logits.dim() > 1 else (logits > 0).to(classes.dtype)
    if chosen.shape != classes.shape:
        raise TrainingError(
            f"accuracy cannot compare predictions of shape {tuple(logits.shape)} with targets of "
            f"shape {tuple(classes.shape)}",
            hint="pass Trainer(metric=...), a function of (predictions, targets)",
        )
    return float((chosen == classes).float().mean())


def _logits_of(predictions: Any) -> torch.Tensor:
    found = getattr(predictions, "logits", predictions)
    if isinstance(found, Mapping):
        found = found.get("logits", next(iter(found.values())))
    if isinstance(found, (tuple, list)):
        found = found[0]
    if not isinstance(found, torch.Tensor):
        raise TrainingError(f"accuracy found no logits in predictions of {type(predictions)}")
    return found


def _classes_of(targets: Any) -> torch.Tensor:
    found = targets
    if isinstance(targets, Mapping):
        names = ("labels", "label", "targets", "target")
        found = next((targets[name] for name in names if name in targets), None)
    elif isinstance(targets, (tuple, list)):
        found = targets[1] if len(targets) > 1 else targets[0]
    if not isinstance(found, torch.Tensor):
        raise TrainingError(
            f"accuracy found no target classes in a batch of type {type(targets).__name__}",
            hint="pass Trainer(metric=...), a function of (predictions, targets)",
        )
    return found
