"""The planner's steady state and the simulated one, found in two ways, are the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_plans import make_plan

from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.stage.schedule import Schedule

timing = pytest.importorskip("ravnest.planning.timing")

stages = st.lists(
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 0.3)), min_size=1, max_size=6
)


@example(  # repeats every six steps, five of which are alike
    [(0.25, 0.64, 0.078), (0.031, 0.55, 0.187), *[(0.09, 0.446, 0.0)] * 4],
    Schedule.ASYNC,
    1,
    164_731,
    11_079,
    0.2537,
)
@given(
    stages,
    st.sampled_from(Schedule),
    st.integers(1, 8),
    st.integers(0, 400_000),
    st.integers(0, 400_000),
    st.floats(0, 0.3),
)
def test_simulation_and_prediction_agree(
    cluster: list[tuple[float, float, float]],
    schedule: Schedule,
    frequency: int,
    activation_bytes: int,
    gradient_bytes: int,
    latency_s: float,
) -> None:
    link = timing.LinkTime(activation_bytes * 1e-6, gradient_bytes * 1e-6, 2 * latency_s)
    pipeline = timing.PipelineTime(
        schedule,
        frequency,
        tuple(timing.StageTime(*each) for each in cluster),
        (link,) * (len(cluster) - 1),
    )
    plan = make_plan(
        [cluster],
        schedule=schedule,
        update_frequency=frequency,
        activation_bytes=activation_bytes,
        gradient_bytes=gradient_bytes,
        latency_s=latency_s,
    )
    predicted = timing.steady_state(pipeline)
    # Long, because an asynchronous pipeline may repeat only every several steps.
    result = simulate(plan, SimulationSettings(num_steps=150))
    assert result.clusters[0].step_time_s == pytest.approx(predicted.step_time_s, rel=0.02)
    busy = [node.utilisation for node in result.nodes]
    assert busy == pytest.approx(list(predicted.busy), rel=0.03, abs=1e-6)
