"""Clips the gradients of a stage by the norm over all stages of its cluster.

How the norm comes about is in `cluster_norm`. A scale of losses uses the same exchange: a norm that
is not finite is how all stages learn that the gradients of one have overflowed.
"""

from __future__ import annotations

import math

from ravnest.node.cluster_norm import ClusterNorm, ExactNorm, KnownNorm
from ravnest.node.links import ClusterLinks
from ravnest.node.settings import RunSettings
from ravnest.plan.model import NodePlan
from ravnest.stage.engine import StageEngine
from ravnest.stage.norms import check_finite, clip, gradient_norms, multiply
from ravnest.stage.precision import LossScale
from ravnest.wire.frame import Frame


def clipping_of(
    plan: NodePlan, settings: RunSettings, engine: StageEngine, links: ClusterLinks
) -> GradientClipping | None:
    """One stage's part in clipping and scaling, None when there is neither."""
    if settings.clip_grad_norm is None and settings.loss_scale is None:
        return None
    kind = ExactNorm if settings.schedule.is_flushed else KnownNorm
    norm = kind(plan, links, settings.clip_norm_type)
    scale = None if settings.loss_scale is None else LossScale(settings.loss_scale)
    return GradientClipping(plan, engine, norm, settings.clip_grad_norm, scale)


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
        self._positions = dict(zip(engine.parameters, plan.positions, strict=True))
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
        own = gradient_norms(parameters, self._positions, self._norm.norm_type)
        # First the stages behind: where gradients break, they break for all stages before as well.
        self._norm.await_behind(step)
        if self._scale is None:
            total = own.total(self._norm.norm_type)
            check_finite(parameters, total, where=f"stage {self._stage} at step {step}")
        norm, dtype = self._norm.of_step(step, own)
        if self._scale is not None:
            norm = self._unscaled(norm, self._scale)
        if self._max_norm is not None and math.isfinite(norm):
            clip(parameters, norm, self._max_norm, dtype)
        return norm

    def _unscaled(self, norm: float, scale: LossScale) -> float:
        """Takes the scale out of the gradients and their norm, and adapts it."""
        factor = 1.0 / scale.value
        if is_finite := math.isfinite(norm):
            multiply(self._engine.parameters, factor)
        scale.update(is_finite=is_finite)
        self._engine.loss_scale = scale.value
        return norm * factor
