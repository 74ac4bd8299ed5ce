"""What a node tells the others about why it failed."""

from __future__ import annotations

from ravnest.errors import RavnestError
from ravnest.plan.model import NodePlan


def reason_of(plan: NodePlan, error: BaseException) -> str:
    """The error in one line, and where it happened."""
    where = f"[c{plan.cluster_id}/s{plan.stage} node_{plan.node_id}]"
    message = error.message if isinstance(error, RavnestError) else str(error)
    return f"{where} {type(error).__name__}: {message}"
