"""Whether a node's memberships in rings fit together. Pure data."""

from __future__ import annotations

from collections.abc import Sequence

from ravnest.errors import AveragingError
from ravnest.plan.parts import RingMembership


def check_memberships(node_id: int, rings: Sequence[RingMembership]) -> None:
    """Raises AveragingError when they contradict each other."""
    owner: dict[str, int] = {}
    for ring in rings:
        if len(ring.members) != ring.size or len(set(ring.members)) != ring.size:
            raise AveragingError(
                f"ring {ring.ring_id} has members {ring.members};"
                f" expected {ring.size} different nodes"
            )
        if not 0 <= ring.rank < ring.size or ring.members[ring.rank] != node_id:
            raise AveragingError(
                f"ring {ring.ring_id} has rank {ring.rank} for node {node_id};"
                f" expected its position in {ring.members}"
            )
        for name in (*ring.parameters, *ring.buffers):
            if name in owner:
                raise AveragingError(
                    f"{name!r} belongs to ring {owner[name]} and ring {ring.ring_id};"
                    " expected one ring per tensor, named once"
                )
            owner[name] = ring.ring_id
    if len({ring.ring_id for ring in rings}) != len(rings):
        ids = [ring.ring_id for ring in rings]
        raise AveragingError(f"ring ids are {ids}; expected every ring once")
