"""Clips the gradients of a stage by the norm over all stages of its cluster.

Under a synchronous schedule every stage reaches a step with the gradients of the same microbatches.
Their norm travels once up the chain, each stage joining its part, and once down again. On the way
up it runs behind the step's last gradients, on the way down ahead of the next step's activations,
so that it is hardly ever waited for by who has something else to do.

Without a flush the stages before are not that far yet, and to wait for them would be a flush. A
stage then knows the parts of this very step from the stages behind it, which are always ahead, and
of the stages before it those that they had when they sent the activations it took last. Both follow
from the order of the schedule alone, so a second run repeats them. Its own part is always of this
step, so no stage ever makes a step from gradients of a norm above the limit.

A scale of losses uses the same exchange: a norm that is not finite is how all stages learn that
the gradients of one have overflowed.

Nothing can lock up: on the way up a stage waits for one whose step came before its own in any
schedule; on the way down, under a flush, for one that waits for nothing but the way up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ravnest.errors import ProtocolError
from ravnest.node.links import ClusterLinks
from ravnest.node.settings import RunSettings
from ravnest.plan.model import NodePlan
from ravnest.stage.engine import StageEngine
from ravnest.stage.norms import check_finite, clip, gradient_norm, joined, multiply
from ravnest.stage.precision import LossScale
from ravnest.wire.frame import Frame, FrameKind

DETAIL = "gradient_norm"
"""In an activation's details: the latest norm of the gradients of all stages before."""


def clipping_of(
    plan: NodePlan, settings: RunSettings, engine: StageEngine, links: ClusterLinks
) -> GradientClipping | None:
    """One stage's part in clipping and scaling, None when there is neither."""
    if settings.clip_grad_norm is None and settings.loss_scale is None:
        return None
    norm = ClusterNorm(plan, links, settings.clip_norm_type, is_exact=settings.schedule.is_flushed)
    scale = None if settings.loss_scale is None else LossScale(settings.loss_scale)
    return GradientClipping(plan, engine, norm, settings.clip_grad_norm, scale)


class ClusterNorm:
    """Joins the norms of all stages of a cluster.

    Args:
        is_exact: every stage gets the norm of the same step from all; else see the file's word.
    """

    def __init__(
        self, plan: NodePlan, links: ClusterLinks, norm_type: float, *, is_exact: bool
    ) -> None:
        self.norm_type = norm_type
        self._plan = plan
        self._links = links
        self._is_exact = is_exact
        self._before = 0.0  # of all stages before this one, as far as known
        self._own = 0.0

    def before_pass(self, frame: Frame) -> Frame:
        """Takes from a microbatch's frame what the stages before know, and adds this stage's part.

        Raises:
            ProtocolError: the frame lacks it.
        """
        if self._is_exact:
            return frame
        if not self._plan.is_root:
            self._before = _norm_in(frame.details, frame)
        known = joined((self._before, self._own), self.norm_type)
        return replace(frame, details={**frame.details, DETAIL: known})

    def behind(self, step: int) -> float:
        """The norm of that step's gradients on all stages behind this one."""
        below = self._plan.forward_target
        return 0.0 if below is None else self._receive(below, step)

    def of_step(self, step: int, own: float, behind: float) -> float:
        """The norm over the cluster.

        Args:
            step: number of the step that the gradients are for.
            own: norm of this stage's gradients.
            behind: what `behind` returned.
        """
        above, below = self._plan.backward_target, self._plan.forward_target
        self._own = own
        reached = joined((own, behind), self.norm_type)
        if above is not None:
            self._send(above, step, reached)
        if not self._is_exact:
            return joined((self._before, reached), self.norm_type)
        total = reached if above is None else self._receive(above, step)
        if below is not None:
            self._send(below, step, total)
        return total

    def _send(self, peer: int, step: int, norm: float) -> None:
        scalars = {DETAIL: norm}
        frame = Frame(FrameKind.GRADIENT_NORM, weight_version=step, scalars=scalars)
        self._links.send_norm(peer, frame)

    def _receive(self, peer: int, step: int) -> float:
        frame = self._links.receive_norm(peer, step)
        return _norm_in(frame.scalars, frame)


class GradientClipping:
    """What a stage does to its gradients before an optimizer step.

    Args:
        max_norm: of the gradients of the whole model, None for any.
        scale: of losses, None for none. A norm that is not finite then leaves the step out, on
            all stages alike, since they have the same norm.
    """

    def __init__(
        self,
        plan: NodePlan,
        engine: StageEngine,
        norm: ClusterNorm,
        max_norm: float | None,
        scale: LossScale | None,
    ) -> None:
        self._stage = plan.stage
        self._engine = engine
        self._norm = norm
        self._max_norm = max_norm
        self._scale = scale
        if scale is not None:
            engine.loss_scale = scale.value

    def before_pass(self, frame: Frame) -> Frame:
        """A microbatch's frame for the stages behind, see `ClusterNorm.before_pass`."""
        return self._norm.before_pass(frame)

    def before_step(self) -> float:
        """Clips this stage's gradients; the norm over the cluster before that.

        It is not finite when the step must be left out.

        Raises:
            TrainingError: they have values that are not finite, and losses are not scaled.
        """
        step, parameters = self._engine.weights.number, self._engine.parameters
        own = gradient_norm(parameters, self._norm.norm_type)
        # First the stages behind: where gradients break, they break for all stages before as well.
        behind = self._norm.behind(step)
        if self._scale is None:
            check_finite(parameters, own, where=f"stage {self._stage} at step {step}")
            total = self._norm.of_step(step, own, behind)
        else:
            total = self._unscaled(self._norm.of_step(step, own, behind), self._scale)
        if self._max_norm is not None and math.isfinite(total):
            clip(parameters, total, self._max_norm)
        return total

    def _unscaled(self, norm: float, scale: LossScale) -> float:
        """Takes the scale out of the gradients and their norm, and adapts it."""
        factor = 1.0 / scale.value
        if is_finite := math.isfinite(norm):
            multiply(self._engine.parameters, factor)
        scale.update(is_finite=is_finite)
        self._engine.loss_scale = scale.value
        return norm * factor


def _norm_in(values: object, frame: Frame) -> float:
    found = values.get(DETAIL) if isinstance(values, Mapping) else None
    if not isinstance(found, float) or found < 0:
        raise ProtocolError(
            f"{frame.kind.name} of microbatch {frame.microbatch} has {DETAIL}={found!r}, "
            "expected a number of 0 or more"
        )
    return found
