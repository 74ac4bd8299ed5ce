"""The engine of one stage on one device: forward, backward, optimizer step, evaluation.

Knows named values and weight versions; knows no neighbours, no schedule and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ravnest.errors import TrainingError
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.copying import DeviceCopier
from ravnest.stage.entrance import Entrance
from ravnest.stage.precision import autocast_on
from ravnest.stage.program import Program, Value
from ravnest.stage.randomness import KeyedRandomness
from ravnest.stage.starting import Start, checked_loss, gradients_of_criterion, start_at_outputs
from ravnest.stage.state import LiveState, StageState
from ravnest.stage.two_passes import WeightPass, backward_of_inputs
from ravnest.stage.updating import Updater, UpdateSettings
from ravnest.stage.weights import WeightVersion

LossFunction = Callable[[Mapping[str, Value]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A microbatch between its forward and its backward pass.

    Attributes:
        loss: on the leaf, with the graph of the criterion.
        entrance: takes the gradients of the inputs.
        outputs: the program's, when the backward pass starts from them: with their graph, or, on
            a leaf that recomputes, as the criterion saw them.
        before: None when the graph was kept; else what the forward pass wrote, as it was before.
    """

    inputs: Mapping[str, Value]
    entrance: Entrance
    weights: WeightVersion
    replicas: WeightVersion
    loss: torch.Tensor | None
    outputs: Mapping[str, Value]
    before: Mapping[str, torch.Tensor] | None


@dataclass(frozen=True, slots=True)
class _Behind:
    """A microbatch whose inputs have their gradients, and the weights not yet."""

    left: WeightPass
    weights: WeightVersion
    replicas: WeightVersion


class StageEngine:
    """Computes one stage.

    Args:
        train: the stage in training mode.
        evaluation: the stage in evaluation mode; shares the state.
        state: initial tensors; they are moved to `device`.
        randomness: seeds the random operators.
        settings: optimizer and scheduler.
        recompute: between the passes of a microbatch keep its inputs alone, and run the forward
            pass again before the backward pass (Chen et al. 2016, "Training Deep Nets with
            Sublinear Memory Cost", with the stage as the segment). Weights, random numbers and
            buffers are those of the first time, and buffers are updated once.
        keeps_previous: keep the weights of before each step, to compute with until the next.
        autocast: compute in that precision where torch.autocast does; None for the weights' own.

    Attributes:
        loss_scale: what losses are multiplied by for the backward pass, None for nothing; see
            `precision.LossScale`.
    """

    def __init__(
        self,
        train: Program,
        evaluation: Program,
        state: StageState,
        *,
        device: torch.device,
        randomness: KeyedRandomness,
        settings: UpdateSettings,
        recompute: bool = False,
        keeps_previous: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._train = train
        self._evaluation = evaluation
        self._device = device
        self._copier = DeviceCopier(device)
        self._recompute = recompute
        self._autocast = autocast
        self.loss_scale: float | None = None
        self.randomness = randomness
        self._live = LiveState(state, device, keeps_previous=keeps_previous)
        self.module, self.weights = self._live.module, self._live.weights
        self.replicas = self._live.replicas
        self.updater = Updater(self.parameters, settings)
        self._in_flight: dict[MicrobatchId, _InFlight] = {}
        self._behind: dict[MicrobatchId, _Behind] = {}

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters that this stage owns, by original name, with gradients and all."""
        return self._live.parameters

    @property
    def num_in_flight(self) -> int:
        """Microbatches that await their backward pass, or a part of it."""
        return len(self._in_flight) + len(self._behind)

    def forward(
        self,
        microbatch: MicrobatchId,
        inputs: Mapping[str, Value],
        loss_function: LossFunction | None = None,
        version: int | None = None,
    ) -> Mapping[str, Value]:
        """Runs the stage in training mode and keeps what its backward pass needs.

        Args:
            inputs: by value name; extra names are ignored.
            loss_function: on the leaf, from the stage's outputs to a scalar.
            version: of the weights, in optimizer steps; None for the newest.

        Returns:
            The outputs by name, detached; on the leaf `{"loss": scalar}`.

        Raises:
            TrainingError: a value or the version is missing, or the loss is no differentiable
                scalar.
        """
        weights, replicas = self.weights.acquire(version), self.replicas.acquire()
        entrance = Entrance()
        given = self._prepare(self._train, inputs, microbatch, entrance)
        state = self._live.at(weights, replicas)
        before = None
        if self._recompute:
            before = {name: state[name].clone() for name in self._train.written if name in state}
        loss = None
        with self._computing(microbatch) as seed_operator:
            outputs: Mapping[str, Value] = self._train(state, given, seed_operator)
            if self._recompute:
                # The graph was on so that both times the same kernels compute; here it is dropped.
                outputs = {name: _as_leaf(value) for name, value in outputs.items()}
            if loss_function is not None:
                loss = checked_loss(loss_function(outputs), microbatch)
        results = outputs if loss is None else {"loss": loss}
        if loss is not None and self.loss_scale is not None:
            loss = loss.float() * self.loss_scale
        if self._recompute == (loss is None):
            outputs = {}  # the loss leads to them, or they are made again
        self._in_flight[microbatch] = _InFlight(
            given, entrance, weights, replicas, loss, outputs, before
        )
        return {name: _detached(value) for name, value in results.items()}

    def backward(
        self, microbatch: MicrobatchId, gradients: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Backward pass of a microbatch with the weights of its forward pass.

        Args:
            gradients: of the outputs, by name; None on the leaf, where the loss is the start.

        Returns:
            Gradients of the differentiable inputs that have one, by name.
        """
        flight = self._in_flight.pop(microbatch)
        return self._whole(flight, *self._starts(microbatch, flight, gradients))

    def backward_input(
        self, microbatch: MicrobatchId, gradients: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """The part of `backward` that the stage before waits for; `backward_weight` is the other.

        Where the stage cannot be split, or would gain nothing, it is the whole.
        """
        flight = self._in_flight.pop(microbatch)
        roots, starts = self._starts(microbatch, flight, gradients)
        inputs = {s.name: flight.inputs[s.name] for s in self._train.inputs if s.differentiable}
        tensors = (*flight.weights.tensors.values(), *flight.replicas.tensors.values())
        weights = [each for each in tensors if each.requires_grad]
        split = backward_of_inputs(roots, starts, list(inputs.values()), weights) if roots else None
        if split is None:
            return self._whole(flight, roots, starts)
        found, left = split
        self._behind[microbatch] = _Behind(left, flight.weights, flight.replicas)
        return {name: each for name, each in zip(inputs, found, strict=True) if each is not None}

    def backward_weight(self, microbatch: MicrobatchId) -> None:
        """The gradients of the weights, where `backward_input` left them."""
        behind = self._behind.pop(microbatch, None)
        if behind is not None:
            behind.left.run()
            self._release(behind)

    def _release(self, held: _InFlight | _Behind) -> None:
        self.weights.release(held.weights)
        self.replicas.release(held.replicas)

    def _whole(
        self,
        flight: _InFlight,
        roots: Sequence[torch.Tensor],
        starts: Sequence[torch.Tensor | None],
    ) -> dict[str, torch.Tensor]:
        if roots:
            torch.autograd.backward(roots, starts)
        self._release(flight)
        return flight.entrance.gradients

    def _starts(
        self,
        microbatch: MicrobatchId,
        flight: _InFlight,
        gradients: Mapping[str, torch.Tensor] | None,
    ) -> Start:
        if flight.before is None and gradients is None:
            assert flight.loss is not None
            return [flight.loss], [None]
        if gradients is None:
            assert flight.loss is not None
            gradients = gradients_of_criterion(flight.loss, flight.outputs)
        outputs = self._graph_of(microbatch, flight)
        return start_at_outputs(outputs, gradients, microbatch, self._copier)

    def _graph_of(self, microbatch: MicrobatchId, flight: _InFlight) -> Mapping[str, Value]:
        """The outputs with the graph that leads back to inputs and weights: kept, or made again."""
        if flight.before is None:
            return flight.outputs
        state = self._live.at(flight.weights, flight.replicas)
        with self._computing(microbatch) as seed_operator:
            return self._train({**state, **flight.before}, flight.inputs, seed_operator)

    def step(self, *, is_left_out: bool = False) -> None:
        """One optimizer step from the gradients summed since the last.

        Args:
            is_left_out: only drop the gradients; the step still counts as made.
        """
        before = self.weights.begin_step()
        if is_left_out:
            self.updater.drop()
        else:
            self.updater.step(before)
        self.weights.end_update()

    def evaluate(self, microbatch: MicrobatchId, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Runs the stage in evaluation mode with the newest weights, without gradients."""
        given = self._prepare(self._evaluation, inputs, microbatch, None)
        with self._computing(microbatch, with_gradients=False) as seed_operator:
            return self._evaluation(self._live.newest(), given, seed_operator)

    def averaged_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that rounds may overwrite in place; see `LiveState.averaged`."""
        return self._live.averaged()

    def optimizer_tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors of the optimizer's state by parameter name and state name."""
        if self.updater.optimizer is None:
            return {}
        state = self.updater.optimizer.state
        return {
            name: {
                key: value
                for key, value in state.get(parameter, {}).items()
                if isinstance(value, torch.Tensor)
            }
            for name, parameter in self.parameters.items()
        }

    def saved_state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers on the CPU, to be written at once; see `LiveState.saved`."""
        return self._live.saved()

    @contextmanager
    def _computing(
        self, microbatch: MicrobatchId, *, with_gradients: bool = True
    ) -> Iterator[Callable[[int], None]]:
        """Around a pass of the program: yields what seeds its random operators."""
        with (
            torch.set_grad_enabled(with_gradients),
            autocast_on(self._device, self._autocast),
            self.randomness.microbatch(microbatch) as seed_operator,
        ):
            yield seed_operator

    def _prepare(
        self,
        program: Program,
        inputs: Mapping[str, Value],
        microbatch: MicrobatchId,
        entrance: Entrance | None,
    ) -> dict[str, Value]:
        prepared: dict[str, Value] = {}
        for spec in program.inputs:
            if spec.name not in inputs:
                raise TrainingError(
                    f"microbatch {microbatch} has no value {spec.name!r}; got {sorted(inputs)}"
                )
            value = inputs[spec.name]
            if isinstance(value, torch.Tensor):
                value = self._copier.to_device(value.detach() if value.requires_grad else value)
                entered = entrance if spec.differentiable else None
                # Either way the program gets a tensor of its own, whose shape it may change.
                value = value.detach() if entered is None else entered.admit(spec.name, value)
            prepared[spec.name] = value
        return prepared


def _detached(value: Value) -> Value:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _as_leaf(value: Value) -> Value:
    """The value without its graph; where it had one, gradients stop and gather at it."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)
