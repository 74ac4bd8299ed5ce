"""Plans as JSON for programs; docs/planning.md describes every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ravnest.cli.rehearsing import Outcome, Rehearsed
from ravnest.cli.rendering.comparison import Comparison, NodeComparison, compare
from ravnest.cli.rendering.view import (
    ClusterView,
    StageView,
    averaging_share,
    clusters_of,
    gap,
)
from ravnest.cli.whatif.changes import Change
from ravnest.errors import RavnestError
from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec
from ravnest.plan.prediction import Prediction

DOCUMENT_SCHEMA = 1
"""Raised when a key changes its meaning or goes; further keys may come without."""


def document(
    source: str,
    calls: Sequence[Rehearsed],
    changes: Sequence[Change] = (),
    failure: BaseException | None = None,
) -> dict[str, Any]:
    """The one object that `--json` prints.

    Args:
        source: the script, or the folder of a plan.
        calls: of clusterize, in order.
        failure: what ended the script early.
    """
    return {
        "schema": DOCUMENT_SCHEMA,
        "source": source,
        "changes": [str(change) for change in changes],
        "plans": [_call(call, has_changes=bool(changes)) for call in calls],
        "error": None if failure is None else _error(failure),
    }


def _call(call: Rehearsed, *, has_changes: bool) -> dict[str, Any]:
    found = _outcome(call.plan)
    if not has_changes or call.changed is None:
        return {**found, "what_if": None}
    comparison = None
    if isinstance(call.plan, Plan) and isinstance(call.changed, Plan):
        comparison = _comparison(compare(call.plan, call.changed))
    what_if = {**_outcome(call.changed), "notes": list(call.notes), "comparison": comparison}
    return {**found, "what_if": what_if}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Plan):
        return {"plan": _plan(outcome), "error": None}
    return {"plan": None, "error": _error(outcome)}


def _error(error: BaseException) -> dict[str, Any]:
    is_ours = isinstance(error, RavnestError)
    return {
        "kind": type(error).__name__,
        "message": error.message if isinstance(error, RavnestError) else str(error),
        "hint": error.hint if is_ours and isinstance(error, RavnestError) else None,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    clusters = clusters_of(plan)
    predicted = plan.prediction
    return {
        "model": plan.model,
        "sha256": plan.sha256 or None,
        "nodes": [_node(node, plan) for node in plan.nodes],
        "clusters": [_cluster(cluster) for cluster in clusters],
        "stages": [_stage(view) for cluster in clusters for view in cluster.stages],
        "rings": [
            {
                "id": ring.ring_id,
                "members": list(ring.members),
                "num_parameters": len(ring.parameters),
                "num_buffers": len(ring.buffers),
            }
            for ring in plan.rings
        ],
        "links": [] if predicted is None else [asdict(link) for link in predicted.links],
        "prediction": None if predicted is None else _whole(predicted),
    }


def _node(node: NodeSpec, plan: Plan) -> dict[str, Any]:
    return {
        "id": node.node_id,
        "address": node.address,
        "memory_bytes": node.memory_bytes,
        "bandwidth_bps": node.bandwidth_bps,
        "flops": node.flops,
        "latency_s": node.latency_s,
        "device": node.device,
        "unused": plan.unused.get(node.node_id),
    }


def _cluster(cluster: ClusterView) -> dict[str, Any]:
    predicted = cluster.prediction
    return {
        "id": cluster.cluster_id,
        "nodes": [view.stage.node_id for view in cluster.stages],
        "step_time_s": predicted and predicted.step_time_s,
        "samples_per_s": predicted and predicted.samples_per_s,
        "bubble": predicted and predicted.bubble,
        "bottleneck": predicted and predicted.bottleneck,
    }


def _stage(view: StageView) -> dict[str, Any]:
    predicted = view.prediction
    return {
        "node": view.stage.node_id,
        "cluster": view.stage.cluster_id,
        "index": view.stage.index,
        "role": str(view.role),
        "cut": list(view.stage.cut),
        "layers": list(view.layers),
        "num_parameters": len(view.stage.parameters),
        "num_buffers": len(view.stage.buffers),
        "replicas": [asdict(replica) for replica in view.stage.replicas],
        "peak_bytes": view.peak_bytes,
        "offered_bytes": view.node.memory_bytes,
        "memory": predicted and asdict(predicted.memory),
        "forward_s": predicted and predicted.forward_s,
        "backward_s": predicted and predicted.backward_s,
        "update_s": predicted and predicted.update_s,
        "busy": predicted and predicted.busy,
        "slack": predicted and predicted.slack,
        "short_steps": predicted and predicted.short_steps,
    }


def _whole(prediction: Prediction) -> dict[str, Any]:
    return {
        "run": asdict(prediction.run),
        "samples_per_s": prediction.samples_per_s,
        "planned_samples_per_s": prediction.planned_samples_per_s,
        "upper_bound_samples_per_s": prediction.upper_bound_samples_per_s,
        "gap": gap(prediction),
        "is_optimal": prediction.is_optimal,
        "averaging_s": prediction.averaging_s,
        "averaging_share": averaging_share(prediction),
        "assumed": list(prediction.assumed),
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "samples_per_s": list(found.samples_per_s),
        "factor": found.factor,
        "step_time_s": list(found.step_time_s),
        "samples_per_step": list(found.samples_per_step),
        "num_clusters": list(found.num_clusters),
        "nodes": [_node_comparison(node) for node in found.nodes],
    }


def _node_comparison(node: NodeComparison) -> dict[str, Any]:
    return {
        "id": node.node_id,
        "peak_bytes": [view and view.peak_bytes for view in (node.before, node.after)],
        "is_moved": node.is_moved,
    }
