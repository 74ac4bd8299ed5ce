"""Repairs what stale gradients cost a stage, from the weight changes that its optimizer proposes.

A gradient applied `delay` steps after the weights it was computed with makes training a control
loop with a dead time: sharp directions oscillate, and the rate that is still stable falls like
1 / delay. The answer of control engineering is a lag and a lead. The lag averages the proposed
changes, the lead adds what that average has just gained, `horizon` times over:

    average[t] = memory * average[t-1] + (1 - memory) * change[t]
    weights   += average[t] + horizon * (average[t] - average[t-1])

With its two numbers this one rule is each of the published ways to look ahead:

- memory 0 is weight prediction: the weights a forward pass meets are the optimizer's own path,
  extrapolated along its last change to the time of use (Chen et al. 2018, SpecTrain; Guan et al.
  2019, XPipe; Yang et al. 2021, PipeMare). Carried by the weights themselves, as here, the same
  arithmetic is an error feedback: what the last change got wrong is added to the next.
- a horizon of one step and a memory of 0.99 is Nesterov's momentum as Ajanthan et al. 2025 use it
  ("Nesterov Method for Asynchronous Pipeline Parallel Optimization").
- a horizon of several steps is quasi-hyperbolic momentum (Ma and Yarats 2019).

Knows tensors and numbers; knows no schedule, no model and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_MOMENTUM_OF = (torch.optim.SGD, torch.optim.RMSprop)
_BETAS_OF = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
)

_MAX_GROUP_BYTES = 1 << 20  # of parameters; the temporaries of a group are as large


@dataclass(frozen=True, slots=True)
class Compensation:
    """How the changes of one stage are corrected.

    Attributes:
        memory: share of the old average in the new one, in [0, 1).
        horizon: steps looked ahead.
        delay: steps between the weights of a gradient and its use.
        replaces_momentum: the average stands in for the optimizer's own momentum, where known.
        warm_up_steps: the first changes are divided by (1 + delay), which fades out over so many
            steps (PipeMare's T1).
    """

    memory: float
    horizon: float
    delay: float
    replaces_momentum: bool = False
    warm_up_steps: int = 0

    @property
    def keeps_average(self) -> bool:
        """Whether there is a tensor to keep per parameter."""
        return self.memory > 0.0 or self.horizon > 0.0

    def rate(self, step: int) -> float:
        """What the changes of that step, counted from 0, are multiplied by."""
        if step >= self.warm_up_steps:
            return 1.0
        return float((1.0 + self.delay) ** (step / self.warm_up_steps - 1.0))


class Compensator:
    """Steps an optimizer and corrects what it did.

    Keeps one tensor like each parameter, the average; computes in at least float32. Parameters
    without a gradient are left alone, as optimizers leave them.

    Args:
        parameters: the ones that the optimizer steps.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], compensation: Compensation) -> None:
        self.compensation = compensation
        self._parameters = list(parameters)
        self._averages: dict[int, torch.Tensor] = {}
        self._counts: dict[int, int] = {}
        self._num_steps = 0

    @property
    def num_bytes(self) -> int:
        """Kept between steps, beside what the optimizer keeps."""
        return sum(average.nbytes for average in self._averages.values())

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """One step of `optimizer` from the gradients in place, corrected."""
        before = {
            index: parameter.detach().clone()
            for index, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        }
        if self.compensation.replaces_momentum:
            with without_momentum(optimizer):
                optimizer.step()
        else:
            optimizer.step()
        rate = self.compensation.rate(self._num_steps)
        for group in self._groups(before):
            self._correct(group, [before.pop(index) for index in group], rate)
        self._num_steps += 1

    def _groups(self, indices: Iterable[int]) -> list[list[int]]:
        """Parameters to correct in one go: alike in dtype and age, small together or one alone."""
        groups: dict[tuple[torch.dtype, int], list[list[int]]] = {}
        sizes: dict[tuple[torch.dtype, int], int] = {}
        for index in indices:
            parameter = self._parameters[index]
            key = parameter.dtype, self._counts.get(index, 0)
            sizes[key] = sizes.get(key, 0) + parameter.nbytes
            if key not in groups or sizes[key] > _MAX_GROUP_BYTES:
                groups.setdefault(key, []).append([])
                sizes[key] = parameter.nbytes
            groups[key][-1].append(index)
        return [group for alike in groups.values() for group in alike]

    def _correct(self, group: Sequence[int], old: list[torch.Tensor], rate: float) -> None:
        """Makes the weights of a group what they should be, from what they are and were."""
        parameters = [self._parameters[index].detach() for index in group]
        precision = _at_least_float32(parameters[0].dtype)
        changes = list(torch._foreach_sub([each.to(precision) for each in parameters], old))
        if self.compensation.keeps_average:
            changes = self._averaged(group, changes)
        if rate != 1.0:
            torch._foreach_mul_(changes, rate)
        torch._foreach_add_(changes, old)
        torch._foreach_copy_(parameters, changes)

    def _averaged(self, group: Sequence[int], changes: list[torch.Tensor]) -> list[torch.Tensor]:
        """The changes to make instead of the proposed ones, which are overwritten."""
        rule = self.compensation
        count = self._counts.get(group[0], 0) + 1
        self._counts.update(dict.fromkeys(group, count))
        if count == 1:
            for index, change in zip(group, changes, strict=True):
                self._averages[index] = change.to(self._parameters[index].dtype, copy=True)
            return changes
        averages = [self._averages[index] for index in group]
        # The weight of the newest change in an average of `count` of them, all counted from the
        # first one on: 1, 1/2, 1/3, ... down to 1 - memory. So early steps are as long as later
        # ones, and nothing is divided by a bias that vanishes.
        newest = max(1.0 - rule.memory, 1.0 / count) if rule.memory else 1.0
        torch._foreach_sub_(changes, averages)
        torch._foreach_mul_(changes, newest)
        torch._foreach_add_(averages, changes)
        torch._foreach_mul_(changes, rule.horizon)
        torch._foreach_add_(changes, averages)
        return changes


@contextmanager
def without_momentum(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it a step has no momentum, and is as long as a step with it is in the long run.

    Of the classes of torch.optim whose momentum is an average of gradients or of steps; others are
    left alone. Schedulers that cycle the momentum see and change the user's own values.
    """
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for group in optimizer.param_groups:
        changed = _momentless(optimizer, group)
        saved.append((group, {key: group[key] for key in changed}))
        group.update(changed)
    try:
        yield
    finally:
        for group, values in saved:
            group.update(values)


def momentum_is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `without_momentum` takes the momentum out of this optimizer."""
    return type(optimizer) in _MOMENTUM_OF or type(optimizer) in _BETAS_OF


def _momentless(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    if type(optimizer) in _BETAS_OF:
        return {"betas": (0.0, group["betas"][1])}
    if type(optimizer) in _MOMENTUM_OF:
        momentum = group["momentum"]
        gain = (1.0 - group.get("dampening", 0.0)) / (1.0 - momentum)
        return {"momentum": 0.0, "lr": group["lr"] * gain}
    return {}


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
