"""`simulate`: a plan in, figures of a run of it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ravnest.plan.model import Plan
from ravnest.simulate.cluster import ClusterRun
from ravnest.simulate.measuring import (
    Measured,
    cluster_result,
    failure_result,
    link_results,
    node_results,
    timeline,
    total_samples_per_s,
)
from ravnest.simulate.result import SimulationResult
from ravnest.simulate.rounds import Rounds
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.wiring import Wiring, prediction_of
from ravnest.stage.schedule import Schedule

_STEADY_STEPS = 20


def simulate(plan: Plan, settings: SimulationSettings | None = None) -> SimulationResult:
    """Runs a plan event by event.

    Takes seconds of passes and bytes of messages from the plan's prediction, the rates of links
    from its nodes, the order of compute from the schedule, and finds out what comes of them. A
    node computes one thing at a time and sends one message at a time, in the order in which its
    script makes them; links are full duplex.

    Args:
        settings: what to change about it; default: nothing.

    Returns:
        Figures of the steady state, and of the whole run where they say so. The same plan and
        settings give the same result.

    Raises:
        PlanFileError: the plan has no prediction.
        ConfigError: the settings name a node without a part in the plan.
    """
    settings = settings or SimulationSettings()
    run = prediction_of(plan).run
    fill, drain = _edges(plan)
    num_steps = settings.num_steps or _enough_steps(plan, fill + drain)
    window = _window(num_steps, fill, drain)
    wiring = Wiring(plan, settings, num_steps, window)
    clusters = wiring.clusters()
    rings = wiring.rings(clusters)
    rounds = Rounds(clusters, rings)
    _run(clusters, rounds)
    measured = [Measured(cluster, window) for cluster in clusters]
    cluster_results = tuple(
        cluster_result(each, run, wiring.stopping_node(each.cluster.cluster_id))
        for each in measured
    )
    duration_s = max(cluster.end_s for cluster in cluster_results)
    nodes = node_results(measured)
    home = {stage.node_id: cluster for cluster in clusters for stage in cluster.stages}
    durations = rounds.durations_s
    return SimulationResult(
        seed=settings.seed,
        num_steps=num_steps,
        duration_s=duration_s,
        samples_per_s=total_samples_per_s(cluster_results, rounds, run),
        averaging_s=sum(durations) / len(durations) if durations else 0.0,
        num_rounds=len(durations),
        staleness=_added(node.staleness for node in nodes),
        clusters=cluster_results,
        nodes=nodes,
        links=link_results(measured, rings, rounds, duration_s),
        failures=tuple(failure_result(f, home[f.node_id]) for f in settings.failures),
        timeline=timeline(clusters, wiring.records) if settings.timeline else None,
    )


def _run(clusters: tuple[ClusterRun, ...], rounds: Rounds) -> None:
    """Every cluster as far as it gets, then the rounds that are complete, and again."""
    runnable = list(clusters)
    while runnable:
        for cluster in runnable:
            cluster.advance()
            rounds.take(cluster)
        runnable = rounds.play()
    assert all(cluster.is_done or cluster.has_stopped for cluster in clusters), "a deadlock"


def _edges(plan: Plan) -> tuple[int, int]:
    """Steps until the pipelines are full, and steps in which they run empty: no steady state."""
    run = prediction_of(plan).run
    depth = max(len(cluster) for cluster in plan.clusters)
    if Schedule.parse(run.schedule).is_flushed:
        return 2, 0
    num_steps = -(-depth // run.update_frequency)
    return 2 * num_steps + 1, num_steps


def _enough_steps(plan: Plan, edges: int) -> int:
    steps = edges + _STEADY_STEPS
    if len(plan.clusters) > 1:
        steps = max(steps, 2 * prediction_of(plan).run.steps_per_round)
    return steps


def _window(num_steps: int, fill: int, drain: int) -> tuple[int, int]:
    """The steps at whose ends measuring begins and ends; -1 is the start of the run."""
    opening, closing = fill - 1, num_steps - 1 - drain
    return (opening, closing) if closing > opening else (-1, num_steps - 1)


def _added(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total: Counter[int] = Counter()
    for each in counts:
        for age, count in enumerate(each):
            total[age] += count
    return tuple(total[age] for age in range(max(total, default=-1) + 1))
