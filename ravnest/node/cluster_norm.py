"""The norm of a step's gradients over all stages of a cluster.

Under a synchronous schedule every stage reaches a step with the gradients of the same microbatches.
The norms of all its gradients, one by one, travel up the chain; the root takes the norm of them all
as one process does, to the bit, and that travels down again. On the way up they run behind the
step's last gradients, on the way down ahead of the next step's activations, so that they are hardly
ever waited for by who has something else to do.

Without a flush the stages before are not that far yet, and to wait for them would be a flush. A
stage then knows the parts of this very step from the stages behind it, which are always ahead, and
of the stages before it those that they had when they sent the activations it took last. Both follow
from the order of the schedule alone, so a second run repeats them. Its own part is always of this
step, so no stage ever makes a step from gradients of a norm above the limit.

Nothing can lock up: on the way up a stage waits for one whose step came before its own in any
schedule; on the way down, under a flush, for one that waits for nothing but the way up.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import replace

import torch

from ravnest.errors import ProtocolError
from ravnest.node.links import ClusterLinks
from ravnest.plan.model import NodePlan
from ravnest.stage.norms import GradientNorms, joined
from ravnest.wire.dtypes import dtype_of, number_of
from ravnest.wire.frame import Frame, FrameKind, Scalar

DETAIL = "gradient_norm"
"""In an activation's details: the latest norm of the gradients of all stages before."""
_DTYPE = "dtype"
_POSITIONS, _NORMS = "positions", "norms"


class ClusterNorm(abc.ABC):
    """One stage's part in finding the norm."""

    def __init__(self, plan: NodePlan, links: ClusterLinks, norm_type: float) -> None:
        self.norm_type = norm_type
        self._links = links
        self._above, self._below = plan.backward_target, plan.forward_target

    @abc.abstractmethod
    def before_pass(self, frame: Frame) -> Frame:
        """Takes from a microbatch's frame what the stages before know, and adds this stage's part.

        Raises:
            ProtocolError: the frame lacks it.
        """

    @abc.abstractmethod
    def await_behind(self, step: int) -> None:
        """Waits for what the stages behind say of that step; ProtocolError for nonsense."""

    @abc.abstractmethod
    def of_step(self, step: int, own: GradientNorms) -> tuple[float, torch.dtype]:
        """The norm over the cluster, and its dtype; once `await_behind` has returned.

        Args:
            step: number of the step that the gradients are for.
            own: of this stage's gradients.
        """

    def _send(self, peer: int, step: int, **values: Scalar | torch.Tensor) -> None:
        tensors = {n: each for n, each in values.items() if isinstance(each, torch.Tensor)}
        scalars = {n: each for n, each in values.items() if not isinstance(each, torch.Tensor)}
        kind = FrameKind.GRADIENT_NORM
        frame = Frame(kind, weight_version=step, tensors=tensors, scalars=scalars)
        self._links.send_norm(peer, frame)


class ExactNorm(ClusterNorm):
    """Under a flush: that of one step on all stages."""

    def __init__(self, plan: NodePlan, links: ClusterLinks, norm_type: float) -> None:
        super().__init__(plan, links, norm_type)
        self._behind: GradientNorms | None = None

    def before_pass(self, frame: Frame) -> Frame:
        return frame

    def await_behind(self, step: int) -> None:
        if self._below is not None:
            self._behind = _norms_in(self._links.receive_norm(self._below, step))

    def of_step(self, step: int, own: GradientNorms) -> tuple[float, torch.dtype]:
        known = own if self._behind is None else own.and_those_of(self._behind)
        if self._above is None:
            norm, dtype = known.total(self.norm_type), known.dtype
        else:
            self._send(
                self._above,
                step,
                positions=torch.tensor(list(known.by_position), dtype=torch.int64),
                norms=torch.tensor(list(known.by_position.values()), dtype=torch.float64),
                dtype=number_of(known.dtype),
            )
            frame = self._links.receive_norm(self._above, step)
            norm, dtype = _norm_in(frame.scalars, frame), _dtype_in(frame)
        if self._below is not None:
            self._send(self._below, step, gradient_norm=norm, dtype=number_of(dtype))
        return norm, dtype


class KnownNorm(ClusterNorm):
    """Without one: of what a stage can know when it makes a step."""

    def __init__(self, plan: NodePlan, links: ClusterLinks, norm_type: float) -> None:
        super().__init__(plan, links, norm_type)
        self._before = 0.0  # of all stages before this one, as far as known
        self._behind = 0.0
        self._own = 0.0

    def before_pass(self, frame: Frame) -> Frame:
        if self._above is not None:
            self._before = _norm_in(frame.details, frame)
        known = joined((self._before, self._own), self.norm_type)
        return replace(frame, details={**frame.details, DETAIL: known})

    def await_behind(self, step: int) -> None:
        if self._below is not None:
            frame = self._links.receive_norm(self._below, step)
            self._behind = _norm_in(frame.scalars, frame)

    def of_step(self, step: int, own: GradientNorms) -> tuple[float, torch.dtype]:
        self._own = own.total(self.norm_type)
        reached = joined((self._own, self._behind), self.norm_type)
        if self._above is not None:
            self._send(self._above, step, gradient_norm=reached)
        return joined((self._before, reached), self.norm_type), own.dtype


def _norm_in(values: Mapping[str, object], frame: Frame) -> float:
    found = values.get(DETAIL)
    if not isinstance(found, float) or found < 0:
        raise _nonsense(frame, f"{DETAIL}={found!r}, expected a number of 0 or more")
    return found


def _dtype_in(frame: Frame) -> torch.dtype:
    number = frame.scalars.get(_DTYPE)
    dtype = dtype_of(number) if isinstance(number, int) else None
    if dtype is None or not dtype.is_floating_point:
        raise _nonsense(frame, f"{_DTYPE}={number!r}, expected one of numbers with a fraction")
    return dtype


def _norms_in(frame: Frame) -> GradientNorms:
    positions, norms = frame.tensors.get(_POSITIONS), frame.tensors.get(_NORMS)
    if (
        positions is None
        or norms is None
        or positions.dtype is not torch.int64
        or norms.dtype is not torch.float64
        or positions.dim() != 1
        or positions.shape != norms.shape
        or bool((norms < 0).any())
    ):
        raise _nonsense(frame, f"no {_POSITIONS} with as many {_NORMS} of 0 or more")
    by_position = dict(zip(positions.tolist(), norms.tolist(), strict=True))
    return GradientNorms(by_position, _dtype_in(frame))


def _nonsense(frame: Frame, found: str) -> ProtocolError:
    number = frame.weight_version if frame.microbatch is None else frame.microbatch
    return ProtocolError(f"{frame.kind.name} {number} has {found}")
