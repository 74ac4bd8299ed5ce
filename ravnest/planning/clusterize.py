"""clusterize: from a model and a file of nodes to a plan and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stages import StageGraphs
from ravnest.errors import ConfigError
from ravnest.plan.files import write_plan
from ravnest.plan.model import Plan
from ravnest.planning.budget.optimizer_states import OptimizerFactory, ask_optimizer
from ravnest.planning.budget.rounds import copies_kept, keeps_what_is_sent
from ravnest.planning.checking.self_test import prepare_test
from ravnest.planning.choosing import form_by_schedule
from ravnest.planning.clustering.clusters import Formation
from ravnest.planning.composing import compose_plan
from ravnest.planning.inputs.example import checked_example, num_samples
from ravnest.planning.inputs.nodes import nodes_of
from ravnest.planning.inputs.settings import (
    ACCELERATOR_BUILD_FOOTPRINT_BYTES,
    RUNTIME_FOOTPRINT_BYTES,
    parse_settings,
)
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.overriding import overridable
from ravnest.planning.predicting import PlannedModel
from ravnest.planning.streaming import StreamedWeights, weight_source, wholly_on_meta
from ravnest.planning.weights import Weights
from ravnest.planning.writing import StageWriter

_CONFIG_FILE = "node_configs.json"


@overridable
def clusterize(
    model: torch.nn.Module,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    pass_data: bool = False,
    *,
    node_data: str | Path = "node_data",
    node_configs: str | Path | None = None,
    num_clusters: int | None = None,
    schedule: str | None = None,
    optimizer_states: int = 2,
    optimizer: OptimizerFactory | None = None,
    optimizer_params: Mapping[str, Any] | None = None,
    recompute: bool = False,
    delay_compensation: str | None = "auto",
    update_frequency: int | None = None,
    reduce_factor: int | None = None,
    compression: bool | str = False,
    outer_optimizer: str | OptimizerFactory | None = None,
    outer_optimizer_params: Mapping[str, Any] | None = None,
    averaging_compression: bool | str = False,
    averaging_overlap: int = 0,
    leaves: Mapping[str, str] | None = None,
    weights: Weights | None = None,
    self_test: bool = True,
    dry_run: bool = False,
    thorough: bool = False,
) -> Plan:
    """Plans the training of a model on the configured nodes and writes everything the nodes need.

    Captures the model, estimates memory and time, forms clusters, splits the model once per way of
    cutting it, forms the averaging rings, replaces the plan below `node_data` as a whole, and
    prints it. The same inputs give the same bytes.

    Args:
        model: any module, also one loaded with `torch.jit.load`.
        example_args: positional inputs of one microbatch, of any dtypes and shapes.
        example_kwargs: keyword inputs of one microbatch.
        pass_data: measure memory by a real forward pass instead of by shapes alone.
        node_data: folder for the plan; may have files of other kinds in it, which stay.
        node_configs: the file that describes the nodes; default `<node_data>/node_configs.json`.
        num_clusters: full copies of the model to train side by side; every node that fits is then
            used. Default: what promises the most samples per second.
        schedule: `1f1b`, `zb-h1`, `2bw` or `async`; memory and time depend on it, and nodes whose
            script says none follow it. Default: `2bw`, or `1f1b` where that is too much for the
            memory there is.
        optimizer_states: tensors per parameter that the optimizer keeps: 2 for Adam, 1 for SGD with
            momentum, 0 for plain SGD. Used when `optimizer` is not given.
        optimizer: as for `Node`: a torch.optim class, or `f(params, **optimizer_params)`. It is
            asked what it keeps and needs, by a step on tensors without values.
        optimizer_params: keyword arguments for it.
        recompute: plan for `Node(recompute=True)`.
        delay_compensation: as for `Node`; takes memory where a schedule has a delay.
        update_frequency: microbatches per optimizer step, `update_frequency` times
            `num_microbatches` of `Node`. None counts the memory that any would need at most, and
            predicts times for 8.
        reduce_factor: optimizer steps between averagings, as `Node(reduce_factor=...)`; 100 are
            assumed when it is not said.
        compression: of activations and gradients on the wire, as `Node(compression=...)`.
        outer_optimizer, outer_optimizer_params: of averaging rounds, as for `Node`; nodes of
            several clusters keep its anchors and states.
        averaging_compression: as for `Node`; nodes keep what it drops.
        averaging_overlap: as for `Node`; above 0 nodes keep what they sent.
        leaves: submodules that cannot be captured and stay code: by path, the factory
            `package.module:function` that builds each. Providers must have the package, and name
            the factory in `Node(trusted_modules=...)`.
        weights: where the weights of a model on the meta device come from; they are read stage by
            stage, so that no more than one stage is ever in memory. A `.safetensors` file, an index
            of several (`model.safetensors.index.json`), a folder with either, or a function from
            a name of the state dict to its tensor. Names, dtypes and shapes must be the model's.
        self_test: compare the stages, as written, with the model on the example before the plan
            takes effect: outputs, all gradients, buffers, both modes. Costs two passes of each;
            left out with a line in the log when the model's tensors are not in memory or there is
            too little for it.
        dry_run: make the plan and print it, but split, test and write nothing.
        thorough: with many nodes, look longer for a better plan, and for a proof of how near the
            best it is: up to minutes instead of seconds.

    Returns:
        The plan as written; its `str()` is what is printed. With `dry_run` it has neither a hash
        nor digests of files.

    Raises:
        ConfigError: an argument, the file of nodes or the weights are wrong.
        CaptureError: the model cannot be captured or cut, or its stages fail the self-test.
        NotEnoughMemoryError: the nodes cannot hold the model.
        PlanningError: there is no plan for another reason.
    """
    settings = parse_settings(
        schedule=schedule,
        optimizer_states=optimizer_states,
        num_clusters=num_clusters,
        update_frequency=update_frequency,
        reduce_factor=reduce_factor,
        compression=compression,
        recompute=recompute,
        delay_compensation=delay_compensation,
        runtime_bytes=_runtime_bytes(),
    )
    if not isinstance(self_test, bool):
        raise ConfigError(f"self_test is {self_test!r}; expected True or False")
    if not isinstance(dry_run, bool):
        raise ConfigError(f"dry_run is {dry_run!r}; expected True or False")
    if not isinstance(thorough, bool):
        raise ConfigError(f"thorough is {thorough!r}; expected True or False")
    args, kwargs = checked_example(model, example_args, example_kwargs)
    folder = Path(node_data)
    nodes = nodes_of(folder / _CONFIG_FILE if node_configs is None else Path(node_configs))
    # A plan alone needs sizes and no values.
    source = None if dry_run and weights is None else weight_source(model, weights)
    with wholly_on_meta(model):
        captured = capture_model(model, args, kwargs, run_forward=pass_data, leaves=leaves)
    streamed = None if source is None else StreamedWeights(captured, model, source)
    trained = [each.tensor for each in captured.state.stored.values() if each.trainable]
    if optimizer is not None:
        cost = ask_optimizer(optimizer, optimizer_params, trained)
        settings = replace(settings, optimizer=cost)
    kept = copies_kept(outer_optimizer, outer_optimizer_params, averaging_compression, trained)
    settings = replace(
        settings,
        kept_for_rounds=kept,
        rounds_overlap=keeps_what_is_sent(averaging_overlap),
        thorough=thorough,
    )
    table = cost_table(captured.costs)
    formation, settings = form_by_schedule(table, nodes, settings)
    model_costs = PlannedModel(table, captured.costs.stored, num_samples((args, kwargs)))
    plan = compose_plan(captured, nodes, formation, model_costs, settings)
    if dry_run:
        return plan
    graphs = _split_once_per_cutting(captured, formation)
    chains = [graphs[cluster.cutting.cuts] for cluster in formation.clusters]
    test = None
    if self_test:
        trusted = tuple((leaves or {}).values())
        test = prepare_test(model, args, kwargs, captured, streamed, trusted=trusted)
    return write_plan(folder, plan, StageWriter(chains, streamed, test))


def _runtime_bytes() -> int:
    """That of the torch here, which the providers are taken to have as well."""
    is_plain = torch.version.cuda is None and torch.version.hip is None
    return RUNTIME_FOOTPRINT_BYTES if is_plain else ACCELERATOR_BUILD_FOOTPRINT_BYTES


def _split_once_per_cutting(
    captured: CapturedModel, formation: Formation
) -> dict[tuple[int, ...], tuple[StageGraphs, ...]]:
    distinct = dict.fromkeys(cluster.cutting.cuts for cluster in formation.clusters)
    return {cuts: split(captured, cuts[1:-1]) for cuts in distinct}
