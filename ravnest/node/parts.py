"""What a node is built from, and the parts it then has; `assembly` makes the one from the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ravnest.averaging.settings import AveragingSettings
from ravnest.capture.stage_file import LoadedStage
from ravnest.node.compressing import LinkCodecs
from ravnest.node.evaluating import StageEvaluator
from ravnest.node.journal import RunJournal
from ravnest.node.links import ClusterLinks
from ravnest.node.options import NodeOptions
from ravnest.node.pipeline import StagePipeline
from ravnest.node.reconciling import Reconciliation
from ravnest.node.rounds import RoundKeeper
from ravnest.node.saving import SubmodelSaver
from ravnest.node.service import StageService
from ravnest.node.settings import RunSettings
from ravnest.node.targets import Criterion
from ravnest.node.tying import TiedParameters
from ravnest.plan.model import NodePlan
from ravnest.stage.engine import StageEngine
from ravnest.stage.randomness import KeyedRandomness
from ravnest.stage.state import StageState
from ravnest.stage.updating import UpdateSettings


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What a node is built from: its part of the plan, and what its script says.

    Attributes:
        state: initial tensors of the stage.
        settings: with schedule and microbatches chosen, by the script or by the plan.
        criterion, labels, test_labels, loss_filename: as for `Node`.
    """

    plan: NodePlan
    stage: LoadedStage
    state: StageState
    settings: RunSettings
    update: UpdateSettings
    averaging: AveragingSettings
    codecs: LinkCodecs
    device: torch.device
    criterion: Criterion | None
    labels: Any
    test_labels: Any
    loss_filename: Path
    options: NodeOptions

    @property
    def is_mean(self) -> bool:
        """Whether the criterion's loss is a mean over the samples, not a sum."""
        said = self.options.loss_reduction or getattr(self.criterion, "reduction", "mean")
        return said != "sum"

    def file_of_cluster(self, path: Path) -> Path:
        """`path`, with the cluster in its name above cluster 0."""
        if self.plan.cluster_id == 0:
            return path
        return path.with_name(f"{path.stem}_cluster_{self.plan.cluster_id}{path.suffix}")


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
