"""The pipeline schedules by name.

Sources: 1F1B is PipeDream-flush and 2BW is PipeDream-2BW (both Narayanan et al. 2021,
"Memory-Efficient Pipeline-Parallel DNN Training"); `async` is PipeDream's steady state (Narayanan
et al. 2019) without a flush, with the weights of the forward pass stashed for the backward pass;
ZB-H1 is Qi et al. 2024, "Zero Bubble Pipeline Parallelism".
"""

from __future__ import annotations

from enum import StrEnum

from ravnest.errors import ConfigError


class Schedule(StrEnum):
    """How a stage orders its work.

    ONE_F_ONE_B: synchronous; every optimizer step is flushed, so weights and gradients are those of
        one process on the same microbatches.
    ASYNC: no flush within an epoch; a stage steps whenever `update_frequency` gradients have come.
        Stage i of S computes with weights up to S-1-i steps older than the ones its gradient
        updates.
    TWO_BW: no flush within an epoch, and the same weights on every stage: those of one step before
        the ones that the gradient updates, W(t+1) = W(t) - rate * gradient(W(t-1)), and for the
        first step of an epoch its own. Runs without a pause when a step has at least as many
        microbatches as the cluster has stages. On one stage nothing is delayed.
    ZB_H1: synchronous, with the numbers of `1f1b`. A stage sends the gradients of its inputs before
        it computes those of its weights, and does the latter where it would wait: stage i is up to
        i microbatches behind with them. The root has no gradients to send, and splits nothing. Its
        pauses are a third of those of `1f1b` where all passes take as long; every stage has as
        many microbatches in flight as the root.

    In all, a stage that uses a parameter of an earlier stage computes a microbatch with the
    version that the owner computed it with: all uses agree, and its age is the owner's.
    """

    ONE_F_ONE_B = "1f1b"
    ASYNC = "async"
    TWO_BW = "2bw"
    ZB_H1 = "zb-h1"

    @property
    def is_flushed(self) -> bool:
        """Whether no microbatch is in flight when weights change."""
        return self in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)

    @property
    def is_uniform(self) -> bool:
        """Whether all stages compute a microbatch with weights of the same step."""
        return self is not Schedule.ASYNC

    def delays(self, num_stages: int) -> bool:
        """Whether every step uses gradients of the weights before the newest."""
        return self is Schedule.TWO_BW and num_stages > 1

    def splits_backward(self, stage: int) -> bool:
        """Whether a stage computes gradients of weights apart from those of its inputs."""
        return self is Schedule.ZB_H1 and stage > 0

    def is_short(self, num_stages: int, update_frequency: int) -> bool:
        """Whether the microbatches of two steps, which is all that `2bw` allows, are too few.

        Then not every stage can have one.
        """
        return self.delays(num_stages) and 2 * update_frequency < num_stages

    @classmethod
    def parse(cls, name: str) -> Schedule:
        """The schedule of that name; ConfigError naming the choices otherwise."""
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(repr(str(choice)) for choice in cls)
            raise ConfigError(f"schedule={name!r} is unknown; expected one of {choices}") from None
