"""Settings of a run that all nodes of a cluster must share, and how they are compared."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ravnest.errors import ConfigError
from ravnest.stage.precision import check_loss_scale
from ravnest.stage.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the root announces and every other node checks against its own script.

    Attributes:
        update_frequency: batches per optimizer step.
        num_microbatches: microbatches that a batch is split into; None until `for_stages` or
            `by_plan` has chosen.
        reduce_factor: optimizer steps between averagings, None for one averaging per epoch.
        average_optim: whether optimizer state is averaged too.
        clip_grad_norm: largest norm of the gradients of the whole model, None for any.
        clip_norm_type: of that norm; 2 or inf, or anything else above 0.
        loss_scale: "dynamic", a constant, or None for none.
        param_groups: the groups of the optimizer, written out.
        averaging: what averaging rounds exchange and do, in words.
    """

    schedule: Schedule
    update_frequency: int
    reduce_factor: int | None
    average_optim: bool
    num_microbatches: int | None = None
    clip_grad_norm: float | None = None
    clip_norm_type: float = 2.0
    param_groups: str = "{}"
    loss_scale: str | float | None = None
    averaging: str = "plain"

    @property
    def microbatches_per_batch(self) -> int:
        """`num_microbatches`, 1 where nobody has said or chosen it."""
        return self.num_microbatches or 1

    @property
    def microbatches_per_step(self) -> int:
        """Backward passes per optimizer step."""
        return self.update_frequency * self.microbatches_per_batch

    def by_plan(self, schedule: Schedule) -> RunSettings:
        """The same for a script that says no schedule: the plan's, unless the loss is scaled.

        Batches are then split only where the script says so, however many stages wait: whether
        dimension 0 is that of samples that do not depend on each other, only the user knows.
        """
        chosen = Schedule.ONE_F_ONE_B if self.loss_scale is not None else schedule
        return replace(self, schedule=chosen, num_microbatches=self.microbatches_per_batch)

    def for_stages(self, num_stages: int) -> RunSettings:
        """The same with `num_microbatches` chosen for a cluster of so many stages.

        Raises:
            ConfigError: a step has too few microbatches for the schedule.
        """
        if not self.schedule.delays(num_stages):
            return replace(self, num_microbatches=self.microbatches_per_batch)
        enough = -(-num_stages // self.update_frequency)
        if self.num_microbatches is None:
            return replace(self, num_microbatches=enough)
        if self.microbatches_per_step < num_stages:
            raise ConfigError(
                f"schedule={str(self.schedule)!r} needs at least one microbatch per stage and "
                f"optimizer step; update_frequency={self.update_frequency} and "
                f"num_microbatches={self.num_microbatches} make {self.microbatches_per_step} for "
                f"{num_stages} stages",
                hint=f"set num_microbatches={enough}, or leave it out",
            )
        return self

    def __post_init__(self) -> None:
        _require_positive("update_frequency", self.update_frequency)
        if self.num_microbatches is not None:
            _require_positive("num_microbatches", self.num_microbatches)
        if self.reduce_factor is not None:
            _require_positive("reduce_factor", self.reduce_factor)
        if self.clip_grad_norm is not None:
            _require_above_zero("clip_grad_norm", self.clip_grad_norm, may_be_infinite=False)
        _require_above_zero("clip_norm_type", self.clip_norm_type, may_be_infinite=True)
        check_loss_scale(self.loss_scale)
        if self.loss_scale is not None and not self.schedule.is_flushed:
            raise ConfigError(
                f"loss_scale={self.loss_scale!r} needs a schedule that flushes, such as '1f1b': "
                f"with {str(self.schedule)!r} a stage steps before it can know that the gradients "
                "of the stages before it overflow",
                hint="use autocast='bf16', which needs no scale",
            )

    def announcement(self) -> dict[str, Any]:
        """As plain data, for the frame that starts a run."""
        return asdict(self)

    def check(self, announced: dict[str, Any], *, node_id: int, root: int) -> None:
        """Raises ConfigError when the root's script has other settings than this node's."""
        for name, own in self.announcement().items():
            if announced.get(name) != own:
                raise ConfigError(
                    f"node {node_id} was started with {name}={own!r}, "
                    f"the root, node {root}, with {name}={announced.get(name)!r}",
                    hint="start the same script with the same settings on every node of a cluster",
                )


def require_callable(**values: object) -> None:
    """Raises ConfigError for the first value that is neither None nor callable."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise ConfigError(
                f"{name}={value!r} cannot be called; expected a class or a function",
                hint=f"pass the function itself, {name}=f, not its name and not a call of it",
            )


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r} is not possible; expected an integer of 1 or more")


def _require_above_zero(name: str, value: object, *, may_be_infinite: bool) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    if not is_number or (value == math.inf and not may_be_infinite):
        raise ConfigError(f"{name}={value!r} is not possible; expected a number above 0")
