"""Keeps a parameter equal that several stages of a cluster use: sums gradients, sends values.

One stage owns it, the first that uses it; the others hold replicas. At every optimizer step the
holders send their gradients to the owner, which adds them to its own in order of stage, steps, and
sends the new values back. Only the owner has optimizer state, so that any optimizer does, and the
values are the same bytes on every device. The other way, the same step on every holder, would move
as many bytes.

Which values a pass uses is decided by its frame. Before the owner computes a microbatch it sends
the values it is going to use, if they have changed since it last did, and notes their number in the
frame. A holder, which the frame reaches later, takes values up to that number. So a microbatch
meets the same values on every stage, under every schedule, and a holder waits only for what was
sent before the frame that it has. Nor can gradients lock up: a holder sends those of a step right
after its last backward pass of it, which the owner's own last one needs anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ravnest.errors import ProtocolError
from ravnest.node.links import ClusterLinks
from ravnest.plan.model import NodePlan
from ravnest.stage.engine import StageEngine
from ravnest.stage.weights import WeightVersions
from ravnest.wire.frame import Frame, FrameKind

DETAIL = "tied"
"""In a frame's details: per owning node the number of the values that it computed with."""


class TiedParameters:
    """One stage's part: as owner of some shared parameters, as holder of replicas of others."""

    def __init__(self, plan: NodePlan, engine: StageEngine, links: ClusterLinks) -> None:
        self._links = links
        self._engine = engine
        self._node_id = plan.node_id
        self._names_by_holder: dict[int, list[str]] = {}
        for node_id in plan.cluster_nodes:
            names = [each.name for each in plan.shared if node_id in each.holders]
            if names:
                self._names_by_holder[node_id] = names
        self._names_by_owner: dict[int, list[str]] = {}
        for replica in plan.replicas:
            self._names_by_owner.setdefault(replica.owner, []).append(replica.name)
        self._taken = dict.fromkeys(self._names_by_owner, 0)
        self._num_sent = 0
        self._sent_version: int | None = None  # of the values that the holders have

    def mark_averaged(self) -> None:
        """Says that the newest values of the owned parameters were changed without a step."""
        if self._sent_version == self._engine.weights.number:
            self._sent_version = None

    def before_pass(self, frame: Frame, version: int | None = None) -> Frame:
        """Brings the replicas to the values that a microbatch is computed with everywhere.

        Args:
            version: of the owned parameters in the pass, None for the newest.

        Returns:
            The frame, on an owner with the number of its values, for the stages behind it.

        Raises:
            ProtocolError: the frame lacks a number, or an owner sent something else.
        """
        numbers = frame.details.get(DETAIL, {})
        for owner in self._names_by_owner:
            self._take(owner, _number(numbers, owner, frame))
        if not self._names_by_holder:
            return frame
        version = self._engine.weights.number if version is None else version
        if version != self._sent_version:
            self._send_values(version)
        numbers = {**numbers, str(self._node_id): self._num_sent}
        return replace(frame, details={**frame.details, DETAIL: numbers})

    def before_step(self) -> None:
        """Moves the gradients of this step to where they are applied.

        Raises:
            ProtocolError: a holder sent something else.
        """
        step = self._engine.weights.number
        for owner, names in self._names_by_owner.items():
            gradients = self._engine.replicas.take_gradients(names)
            frame = Frame(FrameKind.TIED_GRADIENTS, weight_version=step, tensors=gradients)
            self._links.send_tied(owner, frame)
        for holder, names in self._names_by_holder.items():
            frame = self._links.receive_tied(holder, FrameKind.TIED_GRADIENTS, step)
            _check(holder, frame.tensors, names, self._engine.weights)
            self._engine.weights.add_gradients(frame.tensors)

    def finish(self) -> None:
        """Ends training: every replica gets its owner's last values."""
        if self._names_by_holder:
            self._send_values(self._engine.weights.number)
        for owner, number in self._taken.items():
            self._take(owner, number + 1)

    def _send_values(self, version: int) -> None:
        self._num_sent += 1
        self._sent_version = version
        names = {name for each in self._names_by_holder.values() for name in each}
        values = self._engine.weights.copies(names, version)  # which the next step does not write
        for holder, held in self._names_by_holder.items():
            tensors = {name: values[name] for name in held}
            frame = Frame(FrameKind.TIED_VALUES, weight_version=self._num_sent, tensors=tensors)
            self._links.send_tied(holder, frame)

    def _take(self, owner: int, number: int) -> None:
        names = self._names_by_owner[owner]
        while self._taken[owner] < number:
            self._taken[owner] += 1
            frame = self._links.receive_tied(owner, FrameKind.TIED_VALUES, self._taken[owner])
            _check(owner, frame.tensors, names, self._engine.replicas)
            if missing := sorted(set(names) - frame.tensors.keys()):
                raise ProtocolError(f"node {owner} sent no values of {missing[:5]}")
            self._engine.replicas.overwrite(frame.tensors)


def _number(numbers: Mapping[str, object], owner: int, frame: Frame) -> int:
    number = numbers.get(str(owner)) if isinstance(numbers, Mapping) else None
    if not isinstance(number, int):
        raise ProtocolError(
            f"{frame.kind.name} of microbatch {frame.microbatch} does not say which values of node "
            f"{owner} it was computed with"
        )
    return number


def _check(
    peer: int, tensors: Mapping[str, torch.Tensor], names: list[str], own: WeightVersions
) -> None:
    """Nothing but the parameters that both share, in their own form."""
    if unknown := sorted(tensors.keys() - set(names)):
        raise ProtocolError(f"node {peer} sent tensors {unknown[:5]}, expected some of {names[:5]}")
    for name, tensor in tensors.items():
        shape, dtype = own.form_of(name)
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ProtocolError(
                f"node {peer} sent {name!r} with shape {tuple(tensor.shape)} and {tensor.dtype}, "
                f"expected {tuple(shape)} and {dtype}"
            )
