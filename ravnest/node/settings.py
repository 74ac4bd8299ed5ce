"""Settings of a run that all nodes of a cluster must share, and how they are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ravnest.errors import ConfigError
from ravnest.stage.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the root announces and every other node checks against its own script.

    Attributes:
        update_frequency: batches per optimizer step.
        num_microbatches: microbatches that a batch is split into.
        reduce_factor: optimizer steps between averagings, None for one averaging per epoch.
        average_optim: whether optimizer state is averaged too.
    """

    schedule: Schedule
    update_frequency: int
    reduce_factor: int | None
    average_optim: bool
    num_microbatches: int = 1

    @property
    def microbatches_per_step(self) -> int:
        """Backward passes per optimizer step."""
        return self.update_frequency * self.num_microbatches

    def __post_init__(self) -> None:
        _require_positive("update_frequency", self.update_frequency)
        _require_positive("num_microbatches", self.num_microbatches)
        if self.reduce_factor is not None:
            _require_positive("reduce_factor", self.reduce_factor)

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
