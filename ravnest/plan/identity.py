"""Names shared by every room: roles, microbatch ids. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Position of a node in its cluster, as shown to people.

    A cluster of one node is root and leaf at once; its role is ROOT and `is_leaf` is true.
    """

    ROOT = "root"
    STEM = "stem"
    LEAF = "leaf"


@dataclass(frozen=True, slots=True, order=True)
class MicrobatchId:
    """One microbatch of one cluster.

    Attributes:
        epoch: counted from 0 over the whole run.
        index: counted from 0 in the epoch, in the order in which the cluster's root sent them.
    """

    epoch: int
    index: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.index}"


def node_name(node_id: int) -> str:
    """`node_<id>`, the name a provider script passes to `Node`."""
    return f"node_{node_id}"
