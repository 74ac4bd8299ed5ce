"""The measured speed is in the planner's unit, agrees with itself, and refuses what cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ravnest.errors import ConfigError
from ravnest.planning.inputs.settings import BACKWARD_AND_FORWARD, FLOPS_PER_BYTE_WRITTEN
from ravnest.probing.compute import ComputeReading, check_dtype, measure_compute
from ravnest.probing.reference import REFERENCES, Reference, work_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reading() -> ComputeReading:
    return measure_compute(CPU, seconds=0.3)


def test_the_rate_is_in_the_middle_of_the_networks(reading: ComputeReading) -> None:
    rates = [network.flops for network in reading.networks]
    assert [network.name for network in reading.networks] == [each.name for each in REFERENCES]
    assert reading.flops == pytest.approx(math.sqrt(min(rates) * max(rates)))
    assert reading.spread == pytest.approx(math.sqrt(max(rates) / min(rates)))
    assert reading.num_threads == torch.get_num_threads()
    assert reading.device == "cpu"


def test_each_rate_is_work_over_time(reading: ComputeReading) -> None:
    for each, network in zip(REFERENCES, reading.networks, strict=True):
        operations = work_of(each, torch.float32).operations * network.num_samples
        assert network.flops == pytest.approx(operations / network.step_s)
        assert network.num_repeats >= 3


def test_two_numbers_explain_the_networks(reading: ComputeReading) -> None:
    """Not exactly, as there are three networks; but never slower than without one of the terms."""
    assert reading.arithmetic_flops or reading.written_bytes_per_s
    if reading.arithmetic_flops and reading.written_bytes_per_s:
        for each, network in zip(REFERENCES, reading.networks, strict=True):
            work = work_of(each, torch.float32)
            seconds = BACKWARD_AND_FORWARD * work.forward_flops / reading.arithmetic_flops
            seconds += work.written_bytes / reading.written_bytes_per_s
            assert seconds * network.num_samples == pytest.approx(network.step_s, rel=0.9)


@pytest.mark.parametrize("each", REFERENCES, ids=lambda each: each.name)
def test_work_is_that_of_torchs_own_count(each: Reference) -> None:
    """A real forward and backward pass, counted by torch; the planner takes three for one."""
    num_samples = 2
    model = each.build()
    x = torch.randn((num_samples, *each.sample_shape), requires_grad=True)
    # What attention is made of can be counted; as one operator of the CPU it cannot.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        y = model(x)
        forward = counter.get_total_flops()
        y.sum().backward()
    work = work_of(each, torch.float32)
    assert y.shape == x.shape
    assert work.forward_flops * num_samples == pytest.approx(forward, rel=1e-3)
    assert BACKWARD_AND_FORWARD * forward == pytest.approx(counter.get_total_flops(), rel=0.03)
    traffic = FLOPS_PER_BYTE_WRITTEN * work.written_bytes
    assert work.operations == pytest.approx(BACKWARD_AND_FORWARD * work.forward_flops + traffic)


def test_half_precision_writes_half_the_bytes() -> None:
    for each in REFERENCES:
        full, half = (work_of(each, dtype) for dtype in (torch.float32, torch.bfloat16))
        assert half.forward_flops == full.forward_flops
        assert half.written_bytes < 0.7 * full.written_bytes


def test_two_readings_agree_within_a_factor(reading: ComputeReading) -> None:
    again = measure_compute(CPU, seconds=0.3)
    assert 0.1 < again.flops / reading.flops < 10
    assert 1e8 < reading.flops < 1e14


def test_the_threads_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    measure_compute(CPU, seconds=0.01)
    assert torch.get_num_threads() == before


def test_bfloat16_is_measured() -> None:
    assert measure_compute(CPU, "bfloat16", seconds=0.01).dtype == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that must be missing")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="device 'cuda:0' cannot train in float32: Torch not"):
        measure_compute(torch.device("cuda:0"))


def test_a_device_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="'meta' cannot train in float16") as caught:
        measure_compute(torch.device("meta"), "float16", seconds=0.01)
    assert "--dtype" in (caught.value.hint or "")


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="positive number"):
        measure_compute(CPU, seconds=seconds)


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="'int8'; expected one of float32, bfloat16, float16"):
        check_dtype("int8")
