"""Applies changes to the nodes of node_configs.json, in the order in which they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ravnest.cli.whatif.changes import Change, NodeAdded, NodeChanged, NodeRemoved
from ravnest.config import NodeConfig
from ravnest.errors import ConfigError


def changed_nodes(
    configured: Sequence[NodeConfig], changes: Sequence[Change]
) -> tuple[NodeConfig, ...]:
    """The nodes that there would be, in order of id; other changes than of nodes are passed over.

    Raises:
        ConfigError: a change names a node that is not there, or leaves none.
    """
    nodes = {node.node_id: node for node in configured}
    for change in changes:
        match change:
            case NodeChanged():
                _require(change.node_id, nodes, change)
                value: dict[str, Any] = {change.field.attribute: change.value}
                nodes[change.node_id] = dataclasses.replace(nodes[change.node_id], **value)
            case NodeRemoved():
                _require(change.node_id, nodes, change)
                del nodes[change.node_id]
            case NodeAdded():
                # The id of a removed node stays its own, so that both plans speak of one node.
                node_id = max((*nodes, *(node.node_id for node in configured)), default=-1) + 1
                nodes[node_id] = _added(node_id, change)
    if not nodes:
        raise ConfigError("the changes leave no node; expected at least one")
    return tuple(nodes[node_id] for node_id in sorted(nodes))


def _require(node_id: int, nodes: dict[int, NodeConfig], change: Change) -> None:
    if node_id not in nodes:
        there = ", ".join(map(str, sorted(nodes))) or "no nodes"
        raise ConfigError(f"'{change}': there is no node {node_id}", hint=f"there are {there}")


def _added(node_id: int, change: NodeAdded) -> NodeConfig:
    values: dict[str, Any] = {field.attribute: value for field, value in change.values}
    address = f"node-{node_id}.invalid:8080"  # nobody is asked to connect to it
    return NodeConfig(node_id=node_id, address=address, bind=address, **values)
