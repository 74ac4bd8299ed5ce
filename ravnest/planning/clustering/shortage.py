"""What is said when the model does not fit: needed and available, per node and in all."""

from __future__ import annotations

from collections.abc import Sequence

from ravnest.errors import NotEnoughMemoryError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.clustering.remedies import remedies
from ravnest.planning.search.stages import MemoryShares, cut_into_stages

_BOUNDARIES = 256  # enough to say by how much memory is short


def format_bytes(num_bytes: int) -> str:
    """Bytes for people: `1.25 GB`, `350 MB`, in decimal units as node_configs.json has them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            digits = 0 if unit != "GB" and num_bytes >= 100 * size else 2
            return f"{num_bytes / size:.{digits}f} {unit}"
    return f"{num_bytes} B"


def memory_shortage(
    memory: MemoryModel,
    groups: Sequence[Sequence[NodeSpec]],
    nodes: Sequence[NodeSpec],
    *,
    fitting_number: int | None,
) -> NotEnoughMemoryError:
    """The error for nodes that cannot hold the model.

    Per node it names what the fairest split would ask of it: the one in which the largest share
    of its memory that any node is asked for is as small as can be.

    Args:
        groups: nodes of each cluster that was tried, in descending order of memory.
        nodes: all nodes.
        fitting_number: a smaller number of clusters that would fit, or None.
    """
    needed = {i: num for group in groups for i, num in _fairest_split(memory, group).items()}
    lines = [
        _line(node, needed[node.node_id])
        if node.node_id in needed
        else f"  node {node.node_id}: cannot be used, has {format_bytes(node.memory_bytes)}"
        for node in sorted(nodes, key=lambda node: node.node_id)
    ]
    clusters = "1 cluster" if len(groups) == 1 else f"{len(groups)} clusters"
    available = sum(node.memory_bytes for node in nodes)
    missing = sum(
        max(0, needed[node.node_id] - node.memory_bytes) for node in nodes if node.node_id in needed
    )
    lines.append(
        f"  in all: needs {format_bytes(sum(needed.values()))}, has {format_bytes(available)}, "
        f"{format_bytes(missing)} are missing; "
        f"on one node alone the model needs {format_bytes(memory.whole_model_bytes())}"
    )
    return NotEnoughMemoryError(
        f"the model does not fit into the memory of the nodes; in {clusters}, split as fairly as "
        "it can be:\n" + "\n".join(lines),
        hint=_advice(memory, groups, fitting_number),
    )


def _fairest_split(memory: MemoryModel, group: Sequence[NodeSpec]) -> dict[int, int]:
    """Needed bytes per node id; with fewer nodes where a stage each is impossible."""
    coarse = memory.thinned(_BOUNDARIES)
    for size in range(len(group), 0, -1):
        cutting = cut_into_stages(MemoryShares(coarse, group[:size]))
        if cutting is not None:
            ids = (node.node_id for node in group[:size])
            return dict(zip(ids, cutting.needed_bytes, strict=True))
    return {}


def _line(node: NodeSpec, needed: int) -> str:
    text = (
        f"  node {node.node_id}: needs {format_bytes(needed)}, "
        f"has {format_bytes(node.memory_bytes)}"
    )
    missing = needed - node.memory_bytes
    return f"{text}, {format_bytes(missing)} too little" if missing > 0 else text


def _advice(
    memory: MemoryModel, groups: Sequence[Sequence[NodeSpec]], fitting_number: int | None
) -> str:
    """What was found to fit, not what might."""
    found = remedies(memory, groups)
    if fitting_number is not None:
        found = [f"num_clusters={fitting_number}", *found]
    if not found:
        return (
            "add nodes or memory; no smaller batch, dtype or optimizer, and no recomputation, "
            "makes it fit"
        )
    others = f"; so does {', or '.join(found[1:])}" if found[1:] else ""
    return f"{found[0]} fits{others}"
