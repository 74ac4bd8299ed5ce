"""What holds in every simulated run: order, serial resources, repeatability, staleness, rounds."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_plans import make_plan

from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.prediction import Traffic
from ravnest.simulate.result import Interval, Transmission, Work
from ravnest.simulate.settings import Failure, SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.stage.actions import ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

REPOSITORY = Path(__file__).resolve().parents[2]
WORKS = {
    ActionKind.FORWARD: Work.FORWARD,
    ActionKind.BACKWARD: Work.BACKWARD,
    ActionKind.BACKWARD_INPUT: Work.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Work.BACKWARD_WEIGHT,
    ActionKind.STEP: Work.UPDATE,
}

pools = st.lists(
    st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 0.3)),
        min_size=2,
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


def is_serial(spans: list[Interval] | list[Transmission]) -> bool:
    ordered = sorted(spans, key=lambda span: (span.begin_s, span.end_s))
    return all(one.end_s <= other.begin_s + 1e-9 for one, other in itertools.pairwise(ordered))


@given(pools, st.sampled_from(Schedule), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_nothing_is_lost_and_nothing_happens_twice_at_once(
    clusters: list[list[tuple[float, float, float]]],
    schedule: Schedule,
    frequency: int,
    is_tied: bool,
    seed: int,
) -> None:
    plan = make_plan(
        clusters,
        schedule=schedule,
        update_frequency=frequency,
        steps_per_round=2,
        activation_bytes=100_000,
        gradient_bytes=50_000,
        averaging_bytes=300_000,
        latency_s=0.02,
        ties=[(c, 0, len(cluster) - 1) for c, cluster in enumerate(clusters)] if is_tied else [],
        tied_bytes=70_000,
    )
    settings = SimulationSettings(
        num_steps=5,
        seed=seed,
        jitter_s=0.05,
        speed_variation=0.3,
        failures=(Failure(0, 1.0, 3.0),),
        timeline=True,
    )
    result = simulate(plan, settings)
    assert result.timeline is not None
    for node in result.nodes:
        intervals = list(result.timeline.nodes[node.node_id])
        size = len(clusters[node.cluster_id])
        position = StagePosition(schedule, node.stage, size, frequency)
        listed = [(WORKS[a.kind], a.number) for a in list_actions(position, 5 * frequency)]
        done = [(i.work, i.number) for i in intervals if i.work is not Work.AVERAGING]
        assert done == listed
        assert is_serial(intervals)
        sent = [
            transmission
            for (source, _, _), transmissions in result.timeline.links.items()
            if source == node.node_id
            for transmission in transmissions
        ]
        assert is_serial(sent)
        num_rounds = sum(i.work is Work.AVERAGING for i in intervals)
        is_member = node.stage < min(map(len, clusters))
        # After steps 2, 4 and the last.
        assert num_rounds == (3 if len(clusters) > 1 else 0) or not is_member
    per_lane = {Traffic.ACTIVATIONS: 5 * frequency, Traffic.GRADIENTS: 5 * frequency}
    for link in result.links:
        assert link.num_messages == per_lane.get(link.traffic, link.num_messages)


@given(pools, st.integers(1, 3))
def test_no_message_arrives_before_it_was_sent(
    clusters: list[list[tuple[float, float, float]]], frequency: int
) -> None:
    plan = make_plan(
        clusters[:1], update_frequency=frequency, activation_bytes=80_000, latency_s=0.1
    )
    result = simulate(plan, SimulationSettings(num_steps=3, jitter_s=0.2, timeline=True))
    assert result.timeline is not None
    for source in range(len(clusters[0]) - 1):
        sent = result.timeline.links[source, source + 1, Traffic.ACTIVATIONS]
        began = {
            i.number: i.begin_s for i in result.timeline.nodes[source + 1] if i.work is Work.FORWARD
        }
        assert all(began[each.number] >= each.end_s + 0.2 - 1e-9 for each in sent)


SCRIPT = """
import json, sys
from dataclasses import asdict
from simulated_plans import make_plan
from ravnest.simulate.settings import Failure, SimulationSettings
from ravnest.simulate.simulator import simulate
plan = make_plan([[(.1, .2, .05)] * 3, [(.2, .2, .05)] * 3], activation_bytes=9999,
                 gradient_bytes=5555, averaging_bytes=77777, latency_s=.003)
settings = SimulationSettings(num_steps=12, seed=3, jitter_s=.01, speed_variation=.2,
                              speeds={4: .5}, failures=(Failure(1, 2.0, 3.0),))
sys.stdout.write(json.dumps(asdict(simulate(plan, settings))))
assert not {"torch", "grpc", "numpy"} & sys.modules.keys()
"""


def test_a_seed_gives_the_same_bytes_in_every_process() -> None:
    paths = os.pathsep.join((str(REPOSITORY), str(Path(__file__).parent)))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["num_rounds"] == 3


def test_another_seed_gives_another_run() -> None:
    plan = make_plan([[(0.1, 0.2, 0)] * 3], latency_s=0.01)
    one, other = (simulate(plan, SimulationSettings(seed=s, jitter_s=0.05)) for s in (0, 1))
    assert one.duration_s != other.duration_s
    assert simulate(plan, SimulationSettings(seed=1, jitter_s=0.05)) == other


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_staleness_is_that_of_the_schedule(num_stages: int) -> None:
    cluster = [(1, 1, 0)] * num_stages
    flushed = simulate(make_plan([cluster]), SimulationSettings(num_steps=10))
    assert flushed.staleness == (10 * 4 * num_stages,)
    plan = make_plan([cluster], update_frequency=1, schedule="async")
    for node in simulate(plan, SimulationSettings(num_steps=50)).nodes:
        age = num_stages - 1 - node.stage
        # The first microbatches are computed before any step was made.
        assert node.staleness == (*(1 for _ in range(age)), 50 - age)


def test_a_slow_node_is_slow() -> None:
    plan = make_plan([[(1, 1, 0)] * 2], schedule="async")
    assert simulate(plan, SimulationSettings(speeds={1: 0.5})).clusters[0].step_time_s == 16
    varied = SimulationSettings(speed_variation=0.5, num_steps=2000)
    alone = simulate(make_plan([[(1, 1, 0)]]), varied)
    assert alone.clusters[0].step_time_s == pytest.approx(8, rel=0.02)
    assert simulate(plan, varied).clusters[0].step_time_s > 8.5


def test_jitter_adds_its_mean_where_nothing_hides_it() -> None:
    plan = make_plan([[(1, 1, 0)] * 2], update_frequency=1)
    settings = SimulationSettings(jitter_s=0.5, num_steps=4000)
    assert simulate(plan, settings).clusters[0].step_time_s == pytest.approx(5, rel=0.02)


def test_clusters_wait_for_each_other_in_rounds() -> None:
    """4 steps of 8 and of 16 s, then headers, 20 s of sending, votes; 0.3 s of way each."""
    plan = make_plan(
        [[(1, 1, 0)], [(2, 2, 0)]],
        steps_per_round=4,
        averaging_bytes=20 * 10**6,
        latency_s=0.15,
    )
    result = simulate(plan, SimulationSettings(num_steps=12, timeline=True))
    assert [cluster.step_time_s for cluster in result.clusters] == pytest.approx([8, 16])
    assert result.num_rounds == 3
    assert result.averaging_s == pytest.approx(0.3 + 20 + 0.3 + 0.3)
    period_s = 4 * 16 + result.averaging_s
    assert result.samples_per_s == pytest.approx(2 * 4 * 4 * 2 / period_s)
    assert result.timeline is not None
    rounds = [
        [i for i in result.timeline.nodes[node] if i.work is Work.AVERAGING] for node in (0, 1)
    ]
    assert next(i.begin_s for i in rounds[0]) == pytest.approx(32)
    assert [i.end_s for i in rounds[0]] == [i.end_s for i in rounds[1]]
    fewer = simulate(plan, SimulationSettings(num_steps=3))
    assert fewer.num_rounds == 1
    assert fewer.samples_per_s == pytest.approx(result.samples_per_s)


def test_a_round_on_slow_links_is_bound_by_the_way_of_its_chunks() -> None:
    """Four members: six hops of latency and a chunk each, three times around with small frames."""
    plan = make_plan([[(1, 1, 0)]] * 4, averaging_bytes=6000, latency_s=0.5)
    result = simulate(plan, SimulationSettings(num_steps=1))
    assert result.averaging_s == pytest.approx(3 * 1.0 + 6 * (1.0 + 0.001) + 3 * 1.0)


def test_a_dead_node_ends_its_cluster_and_no_other() -> None:
    plan = make_plan([[(1, 1, 0)] * 2, [(1, 1, 0)] * 2], steps_per_round=3)
    settings = SimulationSettings(num_steps=9, failures=(Failure(1, 25.0),))
    result = simulate(plan, settings)
    stopped, other = result.clusters
    assert (stopped.stopped_by, stopped.end_s, stopped.num_steps) == (1, 25, 2)
    assert stopped.num_samples == 2 * 4 * 2
    assert (other.stopped_by, other.num_steps) == (None, 9)
    assert result.samples_per_s == pytest.approx(other.samples_per_s)
    assert "cluster 0 ends at 25 s, after step 2" in result.failures[0].outcome


def test_a_node_that_dies_in_a_round_leaves_it() -> None:
    plan = make_plan([[(1, 1, 0)], [(2, 2, 0)], [(2, 2, 0)]], steps_per_round=1)
    # Cluster 0 waits from 8 s on, the others come at 16 s.
    result = simulate(plan, SimulationSettings(num_steps=2, failures=(Failure(0, 12.0),)))
    assert [cluster.num_steps for cluster in result.clusters] == [1, 2, 2]
    assert result.clusters[0].stopped_by == 0
    assert result.clusters[1].stopped_by is None


def test_a_short_outage_only_delays() -> None:
    plan = make_plan([[(1, 1, 0)] * 2])
    whole = simulate(plan, SimulationSettings(num_steps=5))
    settings = SimulationSettings(num_steps=5, failures=(Failure(1, 8.5, 7.0),))
    delayed = simulate(plan, settings)
    assert delayed.duration_s == whole.duration_s + 7
    assert delayed.failures[0].outcome == "cluster 0 waits for node_1 and goes on"


def test_a_long_outage_ends_the_cluster() -> None:
    settings = SimulationSettings(failures=(Failure(1, 10.0, 30.0),))
    result = simulate(make_plan([[(1, 1, 0)] * 2]), settings)
    assert result.clusters[0].end_s == 30
    assert "20 s of silence later" in result.failures[0].outcome


def test_a_failure_after_the_end_changes_nothing() -> None:
    plan = make_plan([[(1, 1, 0)] * 2])
    settings = SimulationSettings(failures=(Failure(1, 1e6),))
    result = simulate(plan, settings)
    assert replace(result, failures=()) == simulate(plan)
    assert result.failures[0].outcome == "comes after cluster 0 has finished"


def test_a_plan_without_a_prediction_cannot_be_run() -> None:
    plan = replace(make_plan([[(1, 1, 0)]]), prediction=None)
    with pytest.raises(PlanFileError, match="predicts no times"):
        simulate(plan)


def test_settings_that_name_a_stranger_are_refused() -> None:
    with pytest.raises(ConfigError, match="node_7 has no part in the plan; its nodes are node_0"):
        simulate(make_plan([[(1, 1, 0)]]), SimulationSettings(speeds={7: 2.0}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps of a simulation is 0; expected a whole number"),
        ({"num_steps": True}, "num_steps of a simulation is True"),
        ({"jitter_s": -1.0}, "jitter_s of a simulation is -1.0"),
        ({"speed_variation": float("nan")}, "speed_variation of a simulation is nan"),
        ({"speeds": {0: 0.0}}, "speed of node 0 is 0.0; expected a finite number above 0"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimulationSettings(**options)  # type: ignore[arg-type]


def test_impossible_failures_are_refused() -> None:
    with pytest.raises(ConfigError, match="at_s of failure of node 3 is -1"):
        Failure(3, -1)
    with pytest.raises(ConfigError, match="duration_s of failure of node 3 is 0"):
        Failure(3, 1, 0)


def test_hundreds_of_clusters_agree_with_one() -> None:
    """Alike and without rounds in between they do not disturb each other."""
    one = simulate(make_plan([[(1, 2, 0)] * 3], latency_s=0.1), SimulationSettings(num_steps=5))
    many = make_plan([[(1, 2, 0)] * 3] * 300, latency_s=0.1, steps_per_round=100)
    result = simulate(many, SimulationSettings(num_steps=5))
    assert {cluster.step_time_s for cluster in result.clusters} == {one.clusters[0].step_time_s}
    assert asdict(result.nodes[-1])["utilisation"] == one.nodes[-1].utilisation
