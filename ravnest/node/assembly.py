"""Builds the parts of one node from its plan, its stage and its settings. Called by `Node` only."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from ravnest.averaging.averager import Averager
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.settings import AveragingSettings
from ravnest.metrics.events import EventLog
from ravnest.node.clipping import clipping_of
from ravnest.node.couriers import Courier
from ravnest.node.evaluating import StageEvaluator
from ravnest.node.journal import NumberFile, RunJournal
from ravnest.node.leaf import leaf_evaluation, leaf_loss
from ravnest.node.ledger import Ledger
from ravnest.node.links import ClusterLinks
from ravnest.node.memory import MemoryWatch
from ravnest.node.parts import NodeInputs, NodeParts
from ravnest.node.pipeline import StageParts, StagePipeline
from ravnest.node.reconciling import Reconciliation
from ravnest.node.rounds import RoundKeeper, RoundTimes
from ravnest.node.saving import SubmodelSaver
from ravnest.node.service import StageService
from ravnest.node.tying import TiedParameters
from ravnest.plan.model import NodePlan
from ravnest.stage.delays import mean_delay
from ravnest.stage.engine import StageEngine
from ravnest.stage.position import StagePosition
from ravnest.stage.randomness import KeyedRandomness
from ravnest.transport.interface import Transport


def assemble(
    inputs: NodeInputs, transport: Transport, courier: Courier, events: EventLog
) -> NodeParts:
    """Builds the node; sends and receives nothing yet."""
    plan, settings = inputs.plan, inputs.settings
    position = StagePosition(
        settings.schedule,
        plan.stage,
        plan.num_stages,
        settings.microbatches_per_step,
        plan.slack,
        plan.short_steps,
    )
    engine = _engine(inputs, position)
    links = ClusterLinks(plan, transport, courier, inputs.codecs)
    rounds = _rounds(inputs, engine, transport, events)
    tied = TiedParameters(plan, engine, links)
    journal = _journal(inputs, events)
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
            clipping_of(plan, settings, engine, links),
            MemoryWatch(plan, inputs.device),
            ledger,
            reconciliation,
        ),
        leaf_loss(inputs, links),
    )
    evaluator = StageEvaluator(
        engine,
        links,
        tied,
        leaf_evaluation(inputs, links),
        max_outstanding=plan.num_stages,
        device=inputs.device,
    )
    saver = SubmodelSaver(plan, engine, inputs.options.trained, events)
    service = StageService(
        plan,
        settings,
        links=links,
        pipeline=pipeline,
        evaluator=evaluator,
        rounds=rounds,
        tied=tied,
        saver=saver,
        randomness=engine.randomness,
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
        randomness=engine.randomness,
        reconciliation=reconciliation,
    )


def _engine(inputs: NodeInputs, position: StagePosition) -> StageEngine:
    options = inputs.options
    seed = torch.initial_seed() if options.seed is None else options.seed
    return StageEngine(
        inputs.stage.train,
        inputs.stage.eval,
        inputs.state,
        device=inputs.device,
        randomness=KeyedRandomness(seed, inputs.plan.cluster_id, inputs.device),
        settings=replace(inputs.update, delay=mean_delay(position)),
        recompute=options.recompute and position.max_ahead > 1,
        keeps_previous=position.schedule.delays(position.num_stages),
        autocast=options.autocast,
    )


def _rounds(
    inputs: NodeInputs, engine: StageEngine, transport: Transport, events: EventLog
) -> RoundKeeper:
    plan, settings = inputs.plan, inputs.averaging
    averager = Averager(
        plan.node_id,
        plan.rings,
        transport,
        codec=settings.codec,
        outer=_outer_of(plan, settings, engine),
        num_fragments=settings.num_fragments,
        timeout_s=settings.timeout_s,
    )
    # Batches this cluster gets, over those that each would get if all got as many.
    turns = (plan.dealing.count(plan.cluster_id) * plan.num_clusters, len(plan.dealing))
    times = RoundTimes(
        inputs.settings.reduce_factor, settings.overlap_steps, settings.num_fragments, turns
    )
    return RoundKeeper(averager, engine, inputs.settings, events, times)


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


def _journal(inputs: NodeInputs, events: EventLog) -> RunJournal:
    """The leaf writes losses; the root writes validations and shows progress."""
    plan = inputs.plan
    losses = NumberFile(inputs.file_of_cluster(inputs.loss_filename))
    validations = NumberFile(inputs.file_of_cluster(inputs.options.val_filename))
    return RunJournal(
        events,
        losses if plan.is_leaf else None,
        validations if plan.is_root else None,
        sys.stderr if plan.is_root else None,
    )
