"""`Trainer`: the same script on every node; the root drives, the others serve."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ravnest.errors import ConfigError
from ravnest.node.labels import length_of
from ravnest.node.node import Node
from ravnest.node.settings import require_callable
from ravnest.node.targets import Metric
from ravnest.stage.updating import SchedulerFactory
from ravnest.trainer.batches import split_batch
from ravnest.trainer.sharding import ShardedLoader, shard_loader


class Trainer:
    """Trains, evaluates and predicts with a `Node`.

    `train()` drives the epochs on the root; on stem and leaf it serves until training ends. Every
    node calls the same methods in the same order.

    A subclass may override `train()`: call `self.prelim_checks()`, then per batch
    `self.node.forward_compute(...)` and per epoch `self.node.wait_for_backwards()`. The body runs
    on the root alone. It may also override `inputs_of`.

    Args:
        node: this process's node.
        lr_scheduler: as in `Node`; for either of the two.
        lr_scheduler_params: keyword arguments for it.
        train_loader: batches in the same order on every node. Iterate over `self.train_loader`: it
            is this cluster's share.
        val_loader: batches for `evaluate` and validation.
        val_freq: epochs between validations.
        save: save every node's sub-model when training ends, for `model_fusion`.
        epochs: passes over the data.
        batch_size: kept for scripts that read it.
        step_size: kept for scripts that pass it; has no effect.
        inputs_dtype: floating inputs are cast to it.
        metric: `f(predictions, targets) -> float`, a mean over the batch's samples; accuracy by
            default.
        shard: False gives every cluster all batches.
    """

    def __init__(
        self,
        node: Node,
        lr_scheduler: SchedulerFactory | None = None,
        lr_scheduler_params: Mapping[str, Any] | None = None,
        train_loader: Iterable[Any] | None = None,
        val_loader: Iterable[Any] | None = None,
        val_freq: int = 1,
        save: bool = False,
        epochs: int = 1,
        batch_size: int = 64,
        step_size: int = 1,
        inputs_dtype: torch.dtype | None = None,
        *,
        metric: Metric | None = None,
        shard: bool = True,
    ) -> None:
        for name, value in (("epochs", epochs), ("val_freq", val_freq)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} is not possible; expected an integer above 0")
        require_callable(lr_scheduler=lr_scheduler, metric=metric)
        if step_size != 1:
            warnings.warn(
                f"step_size={step_size} has no effect: pass lr_scheduler to change the rate",
                stacklevel=2,
            )
        self.node = node
        self.val_freq = val_freq
        self.save = save
        self.epochs = epochs
        self.batch_size = batch_size
        self.step_size = step_size
        self.inputs_dtype = inputs_dtype
        self.train_loader = _own_share(train_loader, node, shard=shard)
        self.val_loader = None if val_loader is None else ShardedLoader(val_loader)
        self._is_driving = False
        node.root.train_cursor = self.train_loader
        node.root.test_cursor = self.val_loader
        node.root.inputs_dtype = inputs_dtype
        if metric is not None:
            node.set_metric(metric)
        if lr_scheduler is not None:
            node.set_lr_scheduler(lr_scheduler, dict(lr_scheduler_params or {}))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "train" in cls.__dict__:
            cls.train = _driven(cls.__dict__["train"])  # type: ignore[method-assign]

    # For scripts

    def train(self) -> None:
        """Trains for `epochs`; on stem and leaf serves until the root has finished.

        Raises:
            ConfigError: there is no train_loader.
            RavnestError: anything that stops the run, on every node, with the first cause.
        """
        self.prelim_checks()
        loader = self._require(self.train_loader, "train_loader")
        for epoch in range(self.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                args, kwargs = self.inputs_of(batch)
                self.node.forward_compute(args, **kwargs)
            self.node.wait_for_backwards()
            if self.val_loader is not None and (epoch + 1) % self.val_freq == 0:
                self.validate()

    def evaluate(self) -> dict[str, Any]:
        """Evaluates `val_loader` with the newest weights; works on every role.

        Returns:
            The metric by name ("accuracy" in 0 .. 1 by default) and "num_samples".
        """
        loader = self._require(self.val_loader, "val_loader")
        if not self.node.plan.is_root:
            return self.node.serve()
        self._evaluate_batches(loader, "accuracy")
        return self.node.end_phase(training=False)

    def pred(self, data: Any) -> Any:
        """The model's output for inputs `data` (a tensor, tuple or mapping), in evaluation mode.

        Returns:
            What the original model returns, on the root; None elsewhere. Call it on every node.
        """
        if not self.node.plan.is_root:
            self.node.serve()
            return None
        kwargs = dict(data) if isinstance(data, Mapping) else {}
        output = self.node.no_grad_forward_compute(None if kwargs else data, "output", **kwargs)
        self.node.end_phase(training=False)
        return output

    def prelim_checks(self) -> None:
        """What must hold before training starts; for subclasses to call first in `train`."""
        if self.node.plan.is_root:
            total = None if self.train_loader is None else length_of(self.train_loader)
            self.node.expect(epochs=self.epochs, batches_per_epoch=total)

    # For subclasses

    def inputs_of(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs of the model out of a batch of `train_loader`."""
        return split_batch(batch, self.node.argument_names)

    def validate(self) -> dict[str, Any]:
        """Evaluates `val_loader` in the middle of training and notes the metric; on the root."""
        self._evaluate_batches(self._require(self.val_loader, "val_loader"), "val_accuracy")
        return self.node.root.close_evaluation()

    def _evaluate_batches(self, loader: Iterable[Any], output_type: str) -> None:
        for batch in loader:
            args, kwargs = self.inputs_of(batch)
            self.node.no_grad_forward_compute(args, output_type, **kwargs)

    def _require(self, loader: ShardedLoader | None, name: str) -> ShardedLoader:
        if loader is None:
            raise ConfigError(f"the trainer has no {name}", hint=f"pass Trainer({name}=...)")
        return loader


def _driven(body: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a `train` on the root, between the start and the end of the phase; others serve."""

    @functools.wraps(body)
    def train(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        if self._is_driving:  # a subclass that calls super().train()
            return body(self, *args, **kwargs)
        if not self.node.plan.is_root:
            self.node.serve()
            return None
        self._is_driving = True
        try:
            result = body(self, *args, **kwargs)
            self.node.end_phase(training=True, save=self.save)
        except BaseException as error:
            self.node.abort(error)
            raise
        finally:
            self._is_driving = False
        return result

    return train


Trainer.train = _driven(Trainer.train)  # type: ignore[method-assign]


def _own_share(loader: Iterable[Any] | None, node: Node, *, shard: bool) -> ShardedLoader | None:
    if loader is None:
        return None
    if shard or isinstance(loader, ShardedLoader):
        return shard_loader(loader, node)
    return ShardedLoader(loader)
