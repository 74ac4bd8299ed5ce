"""Weight versions of one stage: a backward pass uses the weights of its forward pass.

Forward passes run on aliases of the parameters (same storage, separate autograd leaves), whose
gradients go to the parameters. An update while some forward pass still awaits its backward pass
first moves the parameters that it changes to fresh storage, so the old version stays whole for as
long as it is referenced and not a moment longer (weight stashing, PipeDream; here copy-on-write).
Without microbatches in flight nothing is copied, unless a schedule computes with the version before
the newest (PipeDream-2BW), which then stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from ravnest.errors import TrainingError


@dataclass(slots=True)
class WeightVersion:
    """The weights one or more forward passes have used.

    Attributes:
        number: optimizer steps made before it.
        tensors: by original name; leaves of the autograd graph when trainable.
        references: forward passes that still await their backward pass.
    """

    number: int
    tensors: dict[str, torch.Tensor]
    references: int = 0


class WeightVersions:
    """Current and stashed versions of one stage's parameters.

    Args:
        parameters: by original name, in the model's order; the optimizer's own objects.
        keeps_previous: keep the version before each optimizer step until the next one.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], *, keeps_previous: bool = False
    ) -> None:
        self._parameters = dict(parameters)
        self._keeps_previous = keeps_previous
        self._previous: WeightVersion | None = None
        self._held: dict[int, WeightVersion] = {}
        self._current = WeightVersion(0, self._aliases())
        self._num_stashed = 0

    @property
    def number(self) -> int:
        """Optimizer steps made so far."""
        return self._current.number

    @property
    def num_stashed(self) -> int:
        """Older versions still held in memory for a backward pass, or for a forward pass."""
        return self._num_stashed

    def acquire(self, number: int | None = None) -> WeightVersion:
        """A version for a forward pass; `release` it after the backward pass.

        Args:
            number: of the version, None for the current one.

        Raises:
            TrainingError: there is none of that number.
        """
        version = self._find(number)
        version.references += 1
        return version

    def release(self, version: WeightVersion) -> None:
        """Drops the reference of a forward pass whose backward pass is done."""
        version.references -= 1
        if version is not self._current and version.references == 0:
            self._num_stashed -= 1

    def take_gradients(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Removes the gradients summed so far and returns those there are, dense, by name."""
        taken: dict[str, torch.Tensor] = {}
        for name in names:
            parameter = self._parameters[name]
            if parameter.grad is not None:
                taken[name] = parameter.grad.to_dense()
                parameter.grad = None
        return taken

    def add_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Adds gradients that another stage computed for the same parameters."""
        for name, gradient in gradients.items():
            parameter = self._parameters[name]
            added = gradient.to(parameter.device)
            # Out of place, and the dense one first: its sum with a sparse one is dense.
            parameter.grad = added if parameter.grad is None else added + parameter.grad

    def copies(self, names: Iterable[str], number: int | None = None) -> dict[str, torch.Tensor]:
        """The values of a version, by default the newest, in memory of their own on the CPU."""
        tensors = self._find(number).tensors
        return {name: tensors[name].detach().to("cpu", copy=True) for name in names}

    def overwrite(self, values: Mapping[str, torch.Tensor]) -> None:
        """Makes a new version with other values; forward passes in flight keep theirs."""
        self.begin_update()
        for name, value in values.items():
            self._parameters[name].data.copy_(value)
        self.end_update()

    def form_of(self, name: str) -> tuple[torch.Size, torch.dtype]:
        """Shape and dtype of a parameter."""
        return self._parameters[name].shape, self._parameters[name].dtype

    def begin_step(self) -> Mapping[str, torch.Tensor] | None:
        """Must be called before an optimizer step.

        Returns:
            By name the values that stay as they are while the step changes the parameters, None
            where nobody needs them.
        """
        if self._keeps_previous:
            self.forget_previous()
            self._previous = self.acquire()
        if self._current.references == 0:
            return None
        stashed = self._current
        self._move([each for each in self._parameters.values() if each.requires_grad])
        self._num_stashed += 1
        return stashed.tensors

    def forget_previous(self) -> None:
        """Drops the version before the newest: forward passes go on with the newest."""
        if self._previous is not None:
            self.release(self._previous)
            self._previous = None

    def hold(self) -> None:
        """Keeps the newest version for forward passes to come, until `drop_held`."""
        if self.number not in self._held:
            self._held[self.number] = self.acquire()

    def drop_held(self, before: int | None = None) -> None:
        """Lets go of what `hold` kept: the versions before that number, None for all."""
        for number in sorted(self._held):
            if before is None or number < before:
                self.release(self._held.pop(number))

    def begin_update(self) -> None:
        """Must be called before any of the parameters change in place, frozen ones included."""
        if self._current.references > 0:
            self._move(self._parameters.values())
            self._num_stashed += 1
        elif self._num_stashed > 0:  # with which the newest version shares what is frozen
            self._move([each for each in self._parameters.values() if not each.requires_grad])

    def _move(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives parameters fresh storage: the newest version, from now on, has a successor."""
        for parameter in parameters:
            parameter.data = parameter.data.clone()
        self._current = WeightVersion(self._current.number, self._aliases())

    def end_update(self) -> None:
        """Counts the optimizer step that `begin_update` announced."""
        for name, parameter in self._parameters.items():
            # An optimizer may have given a parameter new storage instead of writing into the old.
            if self._current.tensors[name].data_ptr() != parameter.data_ptr():
                self._current = WeightVersion(self._current.number, self._aliases())
                break
        self._current.number += 1

    def current(self) -> dict[str, torch.Tensor]:
        """The newest weights by name, for passes without gradients."""
        return self._current.tensors

    def _find(self, number: int | None) -> WeightVersion:
        if number is None or number == self._current.number:
            return self._current
        if self._previous is not None and number == self._previous.number:
            return self._previous
        if number in self._held:
            return self._held[number]
        held = [] if self._previous is None else [self._previous.number]
        raise TrainingError(
            f"a forward pass needs the weights of {number} optimizer steps; this stage has those "
            f"of {' and '.join(map(str, [*held, self._current.number]))}",
            hint="this is a defect of the schedule, not of your script: please report it",
        )

    def _aliases(self) -> dict[str, torch.Tensor]:
        # `.data`, not `.detach()`: an alias that shared the parameter's version counter would count
        # the optimizer's writes into fresh storage as writes into the stashed weights.
        aliases: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            alias = aliases[name] = parameter.data.requires_grad_(parameter.requires_grad)
            if alias.requires_grad:
                hook = _gathering(parameter)
                alias.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return aliases


def _gathering(parameter: torch.nn.Parameter) -> Callable[[torch.Tensor], None]:
    """Moves an alias's gradient to the parameter as soon as a backward pass has it.

    So no second set of gradients builds up during the pass. Gradients add up as a plain sum in
    the order of the backward passes, which is the order and the arithmetic of one process calling
    `backward` repeatedly.
    """

    def gather(alias: torch.Tensor) -> None:
        gradient, alias.grad = alias.grad, None
        assert gradient is not None, "the hook runs when there is one"
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient

    return gather
