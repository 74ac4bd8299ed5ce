"""Builds the parts of one node from its plan, its stage and its settings. Called by `Node` only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from ravnest.averaging.averager import Averager
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.settings import AveragingSettings
from ravnest.capture.stage_file import LoadedStage
from ravnest.metrics.events import EventLog
from ravnest.node.clipping import clipping_of
from ravnest.node.compressing import LinkCodecs
from ravnest.node.couriers import Courier
from ravnest.node.evaluating import LeafEvaluation, StageEvaluator
from ravnest.node.journal import NumberFile, RunJournal
from ravnest.node.labels import LabelSource, label_source
from ravnest.node.ledger import Ledger
from ravnest.node.links import ClusterLinks
from ravnest.node.memory import MemoryWatch
from ravnest.node.microbatches import Rows
from ravnest.node.pipeline import LossOfMicrobatch, StageParts, StagePipeline
from ravnest.node.reconciling import Reconciliation
from ravnest.node.rounds import RoundKeeper, RoundTimes
from ravnest.node.saving import SubmodelSaver
from ravnest.node.service import StageService
from ravnest.node.settings import RunSettings
from ravnest.node.targets import (
    Criterion,
    TargetFinder,
    accuracy,
    compute_loss,
    naming_shapes,
    predictions_of,
)
from ravnest.node.tying import TiedParameters
from ravnest.plan.model import NodePlan
from ravnest.stage.delays import mean_delay
from ravnest.stage.engine import LossFunction, StageEngine, StageState
from ravnest.stage.program import Value
from ravnest.stage.randomness import KeyedRandomness
from ravnest.stage.schedule import StagePosition
from ravnest.stage.updating import UpdateSettings
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What a node is built from.

    Attributes:
        state: initial tensors of the stage.
        is_mean: whether the criterion's loss is a mean over the samples, not a sum.
        losses_path: where the leaf writes losses.
        validations_path: where the root writes the metric of validations.
        progress: where the root shows its progress.
        recompute: as `NodeOptions.recompute`.
        autocast: as `NodeOptions.autocast`.
    """

    plan: NodePlan
    stage: LoadedStage
    state: StageState
    settings: RunSettings
    update: UpdateSettings
    averaging: AveragingSettings
    codecs: LinkCodecs
    seed: int
    device: torch.device
    criterion: Criterion | None
    is_mean: bool
    labels: Any
    test_labels: Any
    losses_path: Path
    validations_path: Path
    trained: Path
    progress: TextIO
    recompute: bool
    autocast: torch.dtype | None


@dataclass(frozen=True, slots=True)
class NodeParts:
    """A node's parts, wired."""

    engine: StageEngine
    links: ClusterLinks
    pipeline: StagePipeline
    evaluator: StageEvaluator
    rounds: RoundKeeper
    tied: TiedParameters
    saver: SubmodelSaver
    service: StageService
    journal: RunJournal
    randomness: KeyedRandomness
    reconciliation: Reconciliation


def assemble(
    inputs: NodeInputs, transport: Transport, courier: Courier, events: EventLog
) -> NodeParts:
    """Builds the node; sends and receives nothing yet."""
    plan = inputs.plan
    randomness = KeyedRandomness(inputs.seed, plan.cluster_id, inputs.device)
    position = StagePosition(
        inputs.settings.schedule,
        plan.stage,
        plan.num_stages,
        inputs.settings.microbatches_per_step,
        plan.slack,
    )
    engine = StageEngine(
        inputs.stage.train,
        inputs.stage.eval,
        inputs.state,
        device=inputs.device,
        randomness=randomness,
        settings=replace(inputs.update, delay=mean_delay(position)),
        recompute=inputs.recompute and position.max_ahead > 1,
        keeps_previous=position.schedule.delays(position.num_stages),
        autocast=inputs.autocast,
    )
    links = ClusterLinks(plan, transport, courier, inputs.codecs)
    averager = Averager(
        plan.node_id,
        plan.rings,
        transport,
        codec=inputs.averaging.codec,
        outer=_outer_of(plan, inputs.averaging, engine),
        num_fragments=inputs.averaging.num_fragments,
        timeout_s=inputs.averaging.timeout_s,
    )
    # Batches this cluster gets, over those that each would get if all got as many.
    turns = (plan.dealing.count(plan.cluster_id) * plan.num_clusters, len(plan.dealing))
    times = RoundTimes(
        inputs.settings.reduce_factor,
        inputs.averaging.overlap_steps,
        inputs.averaging.num_fragments,
        turns,
    )
    rounds = RoundKeeper(averager, engine, inputs.settings, events, times)
    tied = TiedParameters(plan, engine, links)
    journal = RunJournal(
        events,
        NumberFile(inputs.losses_path) if plan.is_leaf else None,
        NumberFile(inputs.validations_path) if plan.is_root else None,
        inputs.progress if plan.is_root else None,
    )
    ledger = Ledger(period=len(plan.dealing))
    reconciliation = Reconciliation(plan, ledger, links, events)
    pipeline = StagePipeline(
        StageParts(
            engine,
            links,
            rounds,
            journal,
            position,
            tied,
            clipping_of(plan, inputs.settings, engine, links),
            MemoryWatch(plan, inputs.device),
            ledger,
            reconciliation,
        ),
        _loss_of(inputs, links),
    )
    evaluator = StageEvaluator(
        engine,
        links,
        tied,
        _leaf_evaluation(inputs, links),
        max_outstanding=plan.num_stages,
        device=inputs.device,
    )
    saver = SubmodelSaver(plan, engine, inputs.trained, events)
    service = StageService(
        plan,
        inputs.settings,
        links=links,
        pipeline=pipeline,
        evaluator=evaluator,
        rounds=rounds,
        tied=tied,
        saver=saver,
        randomness=randomness,
    )
    return NodeParts(
        engine=engine,
        links=links,
        pipeline=pipeline,
        evaluator=evaluator,
        rounds=rounds,
        tied=tied,
        saver=saver,
        service=service,
        journal=journal,
        randomness=randomness,
        reconciliation=reconciliation,
    )


def _outer_of(
    plan: NodePlan, settings: AveragingSettings, engine: StageEngine
) -> OuterOptimizer | None:
    """Over what this stage trains and shares with other clusters."""
    averaged = {name for ring in plan.rings if ring.size > 1 for name in ring.parameters}
    if settings.outer is None or not averaged:
        return None
    trained = {
        name: parameter
        for name, parameter in engine.parameters.items()
        if parameter.requires_grad and name in averaged
    }
    return OuterOptimizer(settings.outer, trained)


def _loss_of(inputs: NodeInputs, links: ClusterLinks) -> LossOfMicrobatch | None:
    if not inputs.plan.is_leaf:
        return None
    finder = TargetFinder(_labels_of(inputs, inputs.labels, "labels"), links, inputs.device)
    structure = inputs.stage.train.output_structure

    def loss_of(frame: Frame, local: Any) -> LossFunction:
        targets = finder.find(frame, local)
        share = Rows.of(frame).share if inputs.is_mean else 1.0

        def loss(outputs: Mapping[str, Value]) -> torch.Tensor:
            predictions = predictions_of(outputs, structure)
            with naming_shapes(frame, predictions, targets):
                found = compute_loss(inputs.criterion, predictions, targets)
            return found if share == 1.0 else found * share

        return loss

    return loss_of


def _labels_of(inputs: NodeInputs, labels: Any, name: str) -> LabelSource | None:
    return label_source(labels, name, f"node {inputs.plan.node_id}, the leaf,")


def _leaf_evaluation(inputs: NodeInputs, links: ClusterLinks) -> LeafEvaluation | None:
    if not inputs.plan.is_leaf:
        return None
    source = _labels_of(inputs, inputs.test_labels, "test_labels")
    return LeafEvaluation(
        metric=accuracy,
        finder=TargetFinder(source, links, inputs.device),
        output_structure=inputs.stage.eval.output_structure,
    )
