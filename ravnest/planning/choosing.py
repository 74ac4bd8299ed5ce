"""The schedule that clusters are formed for where nobody has said one.

It is `2bw`, the fastest whose final loss stays within 1 % of a synchronous one's, unless its second
set of weights does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ravnest.errors import NotEnoughMemoryError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.clustering.clusters import Formation, form_clusters
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable
from ravnest.stage.schedule import Schedule

_FALLBACK = Schedule.ONE_F_ONE_B


def form_by_schedule(
    table: CostTable, nodes: Sequence[NodeSpec], settings: PlanningSettings
) -> tuple[Formation, PlanningSettings]:
    """Clusters, and the settings with the schedule that they were formed for.

    Raises:
        NotEnoughMemoryError, PlanningError: as `form_clusters`.
    """
    try:
        return form_clusters(table, nodes, settings), settings
    except NotEnoughMemoryError:
        if not settings.is_default or settings.schedule is _FALLBACK:
            raise
    assumed = tuple(
        f"schedule: {_FALLBACK}; there is too little memory for {settings.schedule}, the default"
        if each.startswith("schedule:")
        else each
        for each in settings.assumed
    )
    settings = replace(settings, schedule=_FALLBACK, assumed=assumed)
    return form_clusters(table, nodes, settings), settings
