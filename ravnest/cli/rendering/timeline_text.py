"""A simulated run as text: what every stage does in order, and the same over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ravnest.cli.rendering import units
from ravnest.plan.model import Plan
from ravnest.simulate.result import Interval, SimulationResult, Work
from ravnest.simulate.wiring import prediction_of

LETTERS = {
    Work.FORWARD: "F",
    Work.BACKWARD: "B",
    Work.BACKWARD_INPUT: "I",
    Work.BACKWARD_WEIGHT: "W",
    Work.UPDATE: "S",
    Work.AVERAGING: "A",
}
_WIDTH = 160
_LABEL = 4  # columns of a short action, where there is room
_IDLE = "."


def timeline_text(plan: Plan, result: SimulationResult, num_steps: int) -> str:
    """Per node a line of its actions in order and one over time.

    Args:
        result: of a run with a timeline.
        num_steps: optimizer steps to show, from the first one on.
    """
    run = prediction_of(plan).run
    lines = [
        f"schedule {run.schedule}, {run.update_frequency} microbatches per step, the first "
        f"{units.count(num_steps, 'step')}; F forward, B backward (I of inputs, W of weights), "
        "S step, A averaging"
    ]
    for number, cluster in enumerate(plan.clusters):
        lines += ["", f"cluster {number}", *_cluster_lines(cluster, result, num_steps)]
    return "\n".join(lines) + "\n"


def _cluster_lines(
    cluster: Sequence[int], result: SimulationResult, num_steps: int
) -> Iterator[str]:
    assert result.timeline is not None, "the simulation was run without a timeline"
    rows = {node: _first(result.timeline.nodes[node], num_steps) for node in cluster}
    names = {node: f"node {node}" for node in cluster}
    indent = max(map(len, names.values()))
    for node, row in rows.items():
        yield f"  {names[node]:<{indent}}  {' '.join(map(_label, row))}".rstrip()
    end_s = max((row[-1].end_s for row in rows.values() if row), default=0.0)
    if end_s <= 0:
        return
    per_column_s = _seconds_per_column(rows.values(), end_s)
    yield f"over time, a column is {units.duration(per_column_s)}"
    for node, row in rows.items():
        yield f"  {names[node]:<{indent}}  {_over_time(row, per_column_s)}"


def _first(intervals: Sequence[Interval], num_steps: int) -> list[Interval]:
    """Up to the end of so many steps, with the rounds right after them."""
    found: list[Interval] = []
    steps = 0
    for each in intervals:
        if steps == num_steps and each.work is not Work.AVERAGING:
            break
        steps += each.work is Work.UPDATE
        found.append(each)
    return found


def _label(interval: Interval) -> str:
    return f"{LETTERS[interval.work]}{interval.number}"


def _seconds_per_column(rows: Iterable[Sequence[Interval]], end_s: float) -> float:
    """So that short passes have room for a label, up to a greatest width."""
    passes = sorted(
        each.end_s - each.begin_s
        for row in rows
        for each in row
        if each.work not in (Work.UPDATE, Work.AVERAGING) and each.end_s > each.begin_s
    )
    usual_s = passes[len(passes) // 10] if passes else end_s
    return max(usual_s / _LABEL, end_s / _WIDTH)


def _over_time(row: Sequence[Interval], per_column_s: float) -> str:
    """Every action from the column it begins in; cut short where the next one begins."""
    line: list[str] = []
    for each in row:
        begin, end = round(each.begin_s / per_column_s), round(each.end_s / per_column_s)
        # What is too short for a column gets one, where the one before has left it free.
        begin, end = max(begin, len(line)), max(end, begin + 1)
        if end <= begin:
            continue
        line += [_IDLE] * (begin - len(line))
        label = _label(each)
        # A label without its end would be that of another microbatch.
        shown = label if len(label) < end - begin else label[0]
        line += list(shown.ljust(end - begin, " " if shown is label else shown[0]))[: end - begin]
    return "".join(line)
