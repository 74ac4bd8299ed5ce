"""Names of the files below node_data/, as paths with forward slashes. Legal on every system."""

from __future__ import annotations

import re

from ravnest.plan.identity import node_name

PLAN_FILE = "plan.json"

_NUMBER = "(?:0|[1-9][0-9]*)"
_STAGE_FILE = re.compile(rf"cluster_{_NUMBER}/node_{_NUMBER}/[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_NODE_FILE = re.compile(rf"nodes/node_{_NUMBER}\.json", re.ASCII)


def node_file(node_id: int) -> str:
    """What one node needs to know."""
    return f"nodes/{node_name(node_id)}.json"


def stage_folder(cluster_id: int, node_id: int) -> str:
    """Where the sub-model of a node lies."""
    return f"cluster_{cluster_id}/{node_name(node_id)}"


def is_plan_path(path: str) -> bool:
    """Whether clusterize could have written a file of this name; nothing else is ever touched."""
    return path == PLAN_FILE or bool(_NODE_FILE.fullmatch(path) or _STAGE_FILE.fullmatch(path))
