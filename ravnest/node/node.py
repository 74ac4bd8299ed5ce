"""`Node`: one provider process's part in a run, as provider scripts use it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ravnest.metrics.events import EventLog, EventName
from ravnest.node.allocator import settle_freed_memory
from ravnest.node.assembly import assemble
from ravnest.node.compressing import link_codecs
from ravnest.node.connecting import grpc_transport
from ravnest.node.couriers import courier_for
from ravnest.node.devices import usable_device, warn_unplanned
from ravnest.node.failing import reason_of
from ravnest.node.loading import initial_state, load_node, parse_node_name
from ravnest.node.logs import show_logs
from ravnest.node.options import NodeOptions
from ravnest.node.parts import NodeInputs, NodeParts
from ravnest.node.presence import Presence
from ravnest.node.root import RootDriver
from ravnest.node.settings import require_callable
from ravnest.node.targets import Criterion, Metric
from ravnest.plan.model import NodePlan
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.schedule import Schedule
from ravnest.stage.updating import OptimizerFactory, SchedulerFactory, UpdateSettings
from ravnest.wire.compression import parse_compression

logger = logging.getLogger(__name__)


class Node:
    """One provider: holds one stage of the model and works with the other nodes of the plan.

    Args:
        name: `node_<id>`; role, stage and neighbours follow from it.
        model: None to start from the weights that clusterize saved, or a module or state dict
            with the same names whose weights are taken instead.
        optimizer: a torch.optim class, or `f(params, **optimizer_params)`.
        optimizer_params: keyword arguments for it.
        lr_scheduler: likewise `f(optimizer, **lr_scheduler_params)`.
        lr_scheduler_params: keyword arguments for it.
        lr_step_on_epoch_change: step the scheduler once per epoch, else once per optimizer step.
        criterion: `f(predictions, targets) -> scalar tensor`, run on the leaf. `predictions` is
            what the original model returns, `targets` the whole batch that `labels` yields. May be
            left out when the model returns its loss.
        update_frequency: batches per optimizer step; their gradients add up.
        reduce_factor: optimizer steps between averagings over the clusters; None for one per epoch.
        labels: on the leaf, a loader in the root's order or a tensor of all targets. Left out, the
            root ships each microbatch's targets; tensors that are model inputs are then None in the
            batch the criterion gets.
        test_labels: the same for evaluation.
        device: where the stage computes.
        loss_filename: the leaf writes one line per optimizer step to it; the leaves of clusters
            above 0 add `_cluster_<c>` to the name.
        compression: of activations and gradients on the wire: False, True (half precision,
            scaled), "bf16", "int8" (blockwise; gradients then in bf16), "int4" or "int4-hadamard"
            (blockwise; gradients then in int8), or "auto": per link what the plan has chosen.
        average_optim: average optimizer state too.
        **options: see `NodeOptions`.

    Raises:
        ConfigError: an argument is impossible.
        PlanFileError: the node is not in the plan, or its files are missing or were changed.
        AddressInUseError: the port is taken.
    """

    def __init__(
        self,
        name: str,
        model: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
        optimizer: OptimizerFactory | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
        lr_scheduler: SchedulerFactory | None = None,
        lr_scheduler_params: Mapping[str, Any] | None = None,
        lr_step_on_epoch_change: bool = True,
        criterion: Criterion | None = None,
        update_frequency: int = 1,
        reduce_factor: int | None = None,
        labels: Any = None,
        test_labels: Any = None,
        device: torch.device | str = torch.device("cpu"),  # noqa: B008  immutable
        loss_filename: str | Path = "losses.txt",
        compression: bool | str = False,
        average_optim: bool = False,
        **options: Any,
    ) -> None:
        self.name = name
        node_id = parse_node_name(name)
        require_callable(optimizer=optimizer, lr_scheduler=lr_scheduler, criterion=criterion)
        chosen = NodeOptions.parse(options)
        settings = chosen.run_settings(update_frequency, reduce_factor, average_optim)
        averaging = chosen.averaging(reduce_factor)
        settings = replace(settings, averaging=averaging.text)
        update = UpdateSettings(
            optimizer,
            dict(optimizer_params or {}),
            lr_scheduler,
            dict(lr_scheduler_params or {}),
            lr_step_on_epoch_change,
            chosen.param_groups,
            DelayCompensation.parse(chosen.delay_compensation),
        )
        _warn_unscaled(chosen)
        named = parse_compression(compression)
        device = usable_device(device)
        self._plan, stage = load_node(chosen.node_data, node_id, chosen.trusted_modules, device)
        codecs = link_codecs(self._plan, named)
        if chosen.schedule is None:
            settings = settings.by_plan(Schedule.parse(self._plan.schedule))
        else:
            settings = settings.for_stages(self._plan.num_stages)
        self._num_microbatches = settings.microbatches_per_batch
        settle_freed_memory(self._plan, device, chosen.return_memory)
        show_logs(f"[c{self._plan.cluster_id}/s{self._plan.stage} {name}]")
        warn_unplanned(device, self._plan.device)
        transport = chosen.transport or grpc_transport(
            self._plan, chosen, codecs.formats(self._plan, averaging.codec)
        )
        transport.start()
        courier = courier_for(device, transport, partial(reason_of, self._plan))
        events = EventLog(
            chosen.events,
            node=node_id,
            cluster=self._plan.cluster_id,
            stage=self._plan.stage,
        )
        self._presence = Presence(self, self._plan, courier, events)
        with self._presence.guarded():
            inputs = NodeInputs(
                plan=self._plan,
                stage=stage,
                state=initial_state(stage, model),
                settings=settings,
                update=update,
                averaging=averaging,
                codecs=codecs,
                device=device,
                criterion=criterion,
                labels=labels,
                test_labels=test_labels,
                loss_filename=Path(loss_filename),
                options=chosen,
            )
            self._parts: NodeParts = assemble(inputs, transport, courier, events)
            self._root = RootDriver(
                self._plan,
                self._parts,
                settings,
                inputs.stage.signature,
                ships_train=labels is None,
                ships_test=test_labels is None,
            )
        events.emit(EventName.RUN_STARTED, plan=self._plan.plan_sha256)
        for record in codecs.records(self._plan):
            events.emit(EventName.COMPRESSION, **record)

    # What the node is

    @property
    def node_type(self) -> str:
        """Its role: "root", "stem" or "leaf"."""
        return str(self._plan.role)

    @property
    def plan(self) -> NodePlan:
        """Its part of the plan."""
        return self._plan

    @property
    def model(self) -> torch.nn.Module:
        """The stage's parameters and buffers under the original model's names."""
        return self._parts.engine.module

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The stage's optimizer, None when there is none or nothing to train."""
        return self._parts.engine.updater.optimizer

    @property
    def n_forwards(self) -> int:
        """Batches of training whose forward passes are made."""
        return self._parts.pipeline.num_forwards // self._num_microbatches

    @property
    def n_backwards(self) -> int:
        """Batches whose backward passes are made."""
        return self._parts.pipeline.num_backwards // self._num_microbatches

    @property
    def root(self) -> RootDriver:
        """What only the root does; for `Trainer`."""
        return self._root

    # What subclassed trainers call

    def forward_compute(self, tensors: Any = None, **kwargs: Any) -> None:
        """Trains on one batch, as `model(tensors)` or `model(**kwargs)` would take it; on the root.

        Returns as soon as the batch is on its way; backward passes and optimizer steps happen in
        the order of the schedule, at the latest in `wait_for_backwards`.

        Args:
            tensors: a tensor, or a tuple or list of positional inputs.
            **kwargs: inputs by the original keyword names.

        Raises:
            TrainingError: the batch does not fit the captured model, or this node is no root.
            TransportError: another node is gone or failed.
        """
        with self._presence.guarded():
            self._root.forward(tensors, kwargs)

    def no_grad_forward_compute(
        self, tensors: Any = None, output_type: str | None = None, **kwargs: Any
    ) -> Any:
        """Evaluates one batch without gradients, with the newest weights; on the root.

        Args:
            tensors, **kwargs: as in `forward_compute`.
            output_type: None or "output" to get the model's output back; "accuracy" or
                "val_accuracy" to have the leaf compute the metric.

        Returns:
            The model's output, or None when a metric was asked for.
        """
        with self._presence.guarded():
            return self._root.evaluate(tensors, kwargs, output_type)

    def wait_for_backwards(self) -> None:
        """Ends an epoch on the root: waits until every batch is trained, applied and averaged.

        An incomplete group of `update_frequency` batches gets an optimizer step of its own.
        """
        with self._presence.guarded():
            self._root.end_epoch()

    def trigger_save_submodel(self) -> None:
        """Saves the trained sub-model for `model_fusion`; on the root, its whole cluster's.

        May be called in the middle of an epoch; batches whose optimizer step is still to come are
        not in it. Call `wait_for_backwards` first to have them all.
        """
        with self._presence.guarded():
            if self._plan.is_root:
                self._root.save()
            else:
                self._parts.saver.save()

    def update_with_latest_weights(self) -> None:
        """Brings `model` up to date: on the root, completes what the schedule still holds back."""
        with self._presence.guarded():
            if self._plan.is_root:
                self._root.complete()

    # What Trainer calls

    def serve(self) -> dict[str, Any]:
        """On stem and leaf: works until the root ends the phase; returns what it announced."""
        with self._presence.guarded():
            return self._parts.service.serve()

    def end_phase(self, *, training: bool, save: bool = False) -> dict[str, Any]:
        """On the root: ends a phase for the whole cluster and returns its results."""
        with self._presence.guarded():
            return self._root.end_phase(training=training, save=save)

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the inputs that the captured model takes, in order; empty beyond the root."""
        return self._root.argument_names

    def expect(self, *, epochs: int, batches_per_epoch: int | None) -> None:
        """Tells the progress line how long training will take."""
        self._parts.journal.expect(epochs=epochs, batches_per_epoch=batches_per_epoch)

    def set_metric(self, metric: Metric) -> None:
        """Replaces accuracy; `metric(predictions, targets)` returns a mean over the samples."""
        self._root.set_metric(metric)

    def set_lr_scheduler(self, factory: SchedulerFactory, params: Mapping[str, Any]) -> None:
        """Gives the optimizer a scheduler; ConfigError when it has one."""
        self._parts.engine.updater.set_scheduler(factory, params)

    # Lifecycle

    def close(self) -> None:
        """Says goodbye to the other nodes and frees the port. Idempotent."""
        self._presence.close()

    def abort(self, error: BaseException) -> None:
        """Tells the other nodes that this one failed, and why. Idempotent."""
        self._presence.abort(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(error)


def _warn_unscaled(options: NodeOptions) -> None:
    if options.autocast is torch.float16 and options.loss_scale is None:
        logger.warning(
            "autocast='fp16' without loss_scale: small gradients become zero, and parameters "
            "behind them stop learning; pass loss_scale='dynamic'"
        )
