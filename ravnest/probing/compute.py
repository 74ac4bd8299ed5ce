"""How fast a device trains, in the unit that plans count work in.

The number is for predicting: work of a stage / number = its seconds. So it is not the rate of one
large matrix product, which no model reaches, but what whole training steps of the reference
networks reach. No single rate is true of all of them, since matrix products are bound by
arithmetic and the rest by memory; the one in the middle of the extremes is wrong by the least
factor, and `spread` says by how much.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls

from ravnest.errors import ConfigError
from ravnest.planning.checking.available import available_memory_bytes
from ravnest.planning.inputs.settings import BACKWARD_AND_FORWARD
from ravnest.probing.reference import REFERENCES, Reference, Work, work_of

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# A step is made this share of the time for one network, so that several can be timed.
_STEP_SHARE = 1 / 60
_MIN_REPEATS = 3
# Activations of a step may take this share of the free memory.
_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class NetworkReading:
    """One reference network, timed.

    Attributes:
        num_samples: per step.
        step_s: median seconds of a forward and backward pass.
        flops: work in the planner's unit per second.
        num_repeats: steps timed.
    """

    name: str
    num_samples: int
    step_s: float
    flops: float
    num_repeats: int


@dataclass(frozen=True, slots=True)
class ComputeReading:
    """What a device reaches.

    Attributes:
        flops: the rate to plan with, work per second in the planner's unit.
        spread: the factor, at least 1, by which the fastest and the slowest network are off.
        networks: each network on its own.
        arithmetic_flops, written_bytes_per_s: the same networks explained by two numbers, seconds =
            operations / the first + bytes written forward / the second; None where the networks
            do not tell them apart.
        num_threads: that torch computes with; on an accelerator it does not matter.
    """

    device: str
    dtype: str
    flops: float
    spread: float
    networks: tuple[NetworkReading, ...]
    arithmetic_flops: float | None
    written_bytes_per_s: float | None
    num_threads: int


def check_dtype(dtype: str) -> None:
    """Raises ConfigError unless it is one that can be measured."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")


def measure_compute(
    device: torch.device, dtype: str = "float32", *, seconds: float = 4.5
) -> ComputeReading:
    """Times training steps of the reference networks on a device.

    Args:
        device: where to compute; as many threads as torch is set to.
        dtype: of weights and activations: float32, bfloat16 or float16.
        seconds: about how long to compute in all. A device so slow that four steps of a network
            take longer gets these four steps.

    Raises:
        ConfigError: the dtype is unknown, or the device is not there or cannot train in it.
    """
    check_dtype(dtype)
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds is {seconds}; expected a positive number")
    works = [work_of(reference, DTYPES[dtype]) for reference in REFERENCES]
    share_s = seconds / len(REFERENCES)
    try:
        networks = tuple(
            _time_network(reference, work, device, DTYPES[dtype], share_s)
            for reference, work in zip(REFERENCES, works, strict=True)
        )
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        # torch without the device, a device that is not there, a dtype it has no kernels for, a
        # device of another kind than this machine's.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"device {str(device)!r} cannot train in {dtype}: {reason}",
            hint="pass another --device or --dtype, the ones the model will train with",
        ) from error
    rates = [network.flops for network in networks]
    arithmetic, traffic = _two_rates(networks, works)
    return ComputeReading(
        device=str(device),
        dtype=dtype,
        flops=math.sqrt(min(rates) * max(rates)),
        spread=math.sqrt(max(rates) / min(rates)),
        networks=networks,
        arithmetic_flops=arithmetic,
        written_bytes_per_s=traffic,
        num_threads=torch.get_num_threads(),
    )


def _time_network(
    reference: Reference, work: Work, device: torch.device, dtype: torch.dtype, share_s: float
) -> NetworkReading:
    model = reference.build().to(device=device, dtype=dtype)
    step = _stepper(model, reference.sample_shape, device, dtype)
    num_samples = _sized(step, work, device, share_s)
    durations: list[float] = []
    ends = time.perf_counter() + share_s
    while len(durations) < _MIN_REPEATS or time.perf_counter() < ends:
        durations.append(step(num_samples))
    step_s = statistics.median(durations)
    rate = work.operations * num_samples / step_s
    return NetworkReading(reference.name, num_samples, step_s, rate, len(durations))


def _stepper(
    model: torch.nn.Module, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Callable[[int], float]:
    """A function that trains on so many samples and returns the seconds it took."""
    generator = torch.Generator().manual_seed(0)
    batches: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(num_samples: int) -> float:
        if num_samples not in batches:
            batches.clear()
            batch = torch.randn((num_samples, *shape), generator=generator).to(device, dtype)
            batches[num_samples] = batch.requires_grad_(), torch.ones_like(batch)
        x, gradient = batches[num_samples]
        _synchronize(device)
        started = time.perf_counter()
        model(x).backward(gradient)
        _synchronize(device)
        taken_s = time.perf_counter() - started
        x.grad = None
        model.zero_grad(set_to_none=True)
        return taken_s

    return step


def _sized(step: Callable[[int], float], work: Work, device: torch.device, share_s: float) -> int:
    """How many samples make a step long enough to time; warms the device up on the way."""
    free = available_memory_bytes(device)
    most = max(1, int(free * _MEMORY_SHARE / work.saved_bytes)) if free else 64
    num_samples = 1
    step(num_samples)
    while step(num_samples) < share_s * _STEP_SHARE and num_samples < most:
        num_samples = min(most, 2 * num_samples)
        step(num_samples)
    return num_samples


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _two_rates(
    networks: Sequence[NetworkReading], works: Sequence[Work]
) -> tuple[float | None, float | None]:
    """Operations and written bytes per second that explain all networks, by least squares."""
    seconds = np.array([network.step_s / network.num_samples for network in networks])
    rows = np.array(
        [[BACKWARD_AND_FORWARD * work.forward_flops, work.written_bytes] for work in works]
    )
    inverse, _ = nnls(rows / seconds[:, None], np.ones(len(seconds)))
    arithmetic, traffic = (None if value <= 0 else float(1 / value) for value in inverse)
    return arithmetic, traffic
