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

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        parameters: the ones that the optimizer steps, by name.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], compensation: Compensation) -> None:
        self.compensation = compensation
        self._parameters = dict(parameters)
        self._averages: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}
        self._num_steps = 0

    @property
    def num_bytes(self) -> int:
        """Kept between steps, beside what the optimizer keeps."""
        return sum(average.nbytes for average in self._averages.values())

    @torch.no_grad()
    def step(
        self, optimizer: torch.optim.Optimizer, before: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """One step of `optimizer` from the gradients in place, corrected.

        Args:
            before: the values of the parameters in storage of their own, where somebody has them:
                else they are copied.
        """
        stepped = [name for name, each in self._parameters.items() if each.grad is not None]
        if before is None:
            before = {name: self._parameters[name].detach().clone() for name in stepped}
        if self.compensation.replaces_momentum:
            with without_momentum(optimizer):
                optimizer.step()
        else:
            optimizer.step()
        rate = self.compensation.rate(self._num_steps)
        for group in self._groups(stepped):
            self._correct(group, [before[name].detach() for name in group], rate)
        self._num_steps += 1

    def _groups(self, names: Iterable[str]) -> list[list[str]]:
        """Parameters to correct in one go: alike in dtype and age, small together or one alone."""
        groups: dict[tuple[torch.dtype, int], list[list[str]]] = {}
        sizes: dict[tuple[torch.dtype, int], int] = {}
        for name in names:
            parameter = self._parameters[name]
            key = parameter.dtype, self._counts.get(name, 0)
            sizes[key] = sizes.get(key, 0) + parameter.nbytes
            if key not in groups or sizes[key] > _MAX_GROUP_BYTES:
                groups.setdefault(key, []).append([])
                sizes[key] = parameter.nbytes
            groups[key][-1].append(name)
        return [group for alike in groups.values() for group in alike]

    def _correct(self, group: Sequence[str], old: list[torch.Tensor], rate: float) -> None:
        """Makes the weights of a group what they should be, from what they are and were.

        In place, as little as there is to read and write: these passes over all weights cost as
        much as the optimizer's own. Only weights of 16 bits are computed beside.
        """
        parameters = [self._parameters[name].detach() for name in group]
        precision = torch.promote_types(parameters[0].dtype, torch.float32)
        computed = [each.to(precision) for each in parameters]
        torch._foreach_sub_(computed, old)  # now the proposed changes
        if self.compensation.keeps_average:
            averages, gained = self._average(group, computed)
            torch._foreach_mul_(computed, rate * self.compensation.horizon * gained)
            torch._foreach_add_(computed, averages, alpha=rate)
        elif rate != 1.0:
            torch._foreach_mul_(computed, rate)
        torch._foreach_add_(computed, old)
        if computed[0] is not parameters[0]:
            torch._foreach_copy_(parameters, computed)

    def _average(
        self, group: Sequence[str], changes: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], float]:
        """The averages with these changes in them, and by what part of `changes` they have grown.

        Args:
            changes: the proposed ones; afterwards, their distances from the old averages.
        """
        count = self._counts.get(group[0], 0) + 1
        self._counts.update(dict.fromkeys(group, count))
        if count == 1:
            for name in group:
                self._averages[name] = torch.zeros_like(self._parameters[name])
        averages = [self._averages[name] for name in group]
        # The weight of the newest change in an average of `count` of them, all counted from the
        # first one on: 1, 1/2, 1/3, ... down to 1 - memory. So early steps are as long as later
        # ones, and nothing is divided by a bias that vanishes.
        memory = self.compensation.memory
        newest = max(1.0 - memory, 1.0 / count) if memory else 1.0
        torch._foreach_sub_(changes, averages)
        torch._foreach_add_(averages, changes, alpha=newest)
        # The first change is no growth: there was no average to grow from.
        return averages, newest if count > 1 else 0.0


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
