"""Saves a node's trained sub-model where model_fusion finds it, and the state of its loader."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ravnest.checkpoint.loader_state import loader_state_path, save_loader_state
from ravnest.checkpoint.submodels import save_submodel, submodel_path
from ravnest.errors import ConfigError
from ravnest.metrics.events import EventLog, EventName
from ravnest.plan.model import NodePlan
from ravnest.stage.engine import StageEngine

logger = logging.getLogger(__name__)


class SubmodelSaver:
    """Writes the newest weights of one stage on demand."""

    def __init__(self, plan: NodePlan, engine: StageEngine, folder: Path, events: EventLog) -> None:
        self._plan = plan
        self._engine = engine
        self._path = submodel_path(folder, plan.cluster_id, plan.node_id)
        self._loader_path = loader_state_path(folder, plan.cluster_id, plan.node_id)
        self._events = events

    def save(self) -> Path:
        """Saves the sub-model and returns the file."""
        save_submodel(self._path, self._engine.saved_state(), self._plan.plan_sha256)
        self._events.emit(EventName.SAVED, path=self._path.as_posix())
        logger.info("saved the trained sub-model to %s", self._path)
        return self._path

    def save_loader(self, state: Any, *, epoch: int) -> None:
        """Saves what a loader's `state_dict` returned; a state that cannot be is a warning."""
        try:
            save_loader_state(self._loader_path, state, epoch=epoch)
        except ConfigError as error:
            logger.warning(
                "the position in the training data is not saved, and an older one stays: %s; the "
                "trained sub-model is saved",
                error.message,
            )
