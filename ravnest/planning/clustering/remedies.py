"""What would make a model fit: every change that a user can make is tried on the memory model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.ranges import RangeMax
from ravnest.planning.inputs.settings import OptimizerCost
from ravnest.planning.inputs.table import CostTable
from ravnest.planning.search.stages import StageTimes
from ravnest.stage.schedule import Schedule

_BOUNDARIES = 128
_BATCH_FIELDS = (
    "saved_bytes",
    "forward_bytes",
    "backward_bytes",
    "unsaved_bytes",
    "received_bytes",
)


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A change, in words, and the memory model after it."""

    words: str
    apply: Callable[[MemoryModel], MemoryModel]


def remedies(memory: MemoryModel, groups: Sequence[Sequence[NodeSpec]]) -> list[str]:
    """Changes that make the model fit, in words; each alone, or else the first few together.

    Args:
        memory: with the settings that do not fit.
        groups: nodes of each cluster, in the order of their stages.
    """
    coarse = memory.thinned(_BOUNDARIES)
    single = list(_single(coarse))
    found = [each.words for each in single if _fits(each.apply(coarse), groups)]
    found += _smaller_batch(coarse, groups)
    return found or _together(coarse, groups, single)


def _together(
    memory: MemoryModel, groups: Sequence[Sequence[NodeSpec]], single: Sequence[_Remedy]
) -> list[str]:
    """One combination that fits and of which nothing can be left out, or none."""
    batch: list[str] = []
    chosen = next(
        (single[:n] for n in range(2, len(single) + 1) if _fits(_all(memory, single[:n]), groups)),
        None,
    )
    if chosen is None:
        chosen = list(single)
        batch = _smaller_batch(_all(memory, chosen), groups)
        if not batch:
            return []
    else:
        for remedy in single:
            fewer = [each for each in chosen if each is not remedy]
            if _fits(_all(memory, fewer), groups):
                chosen = fewer
    return [" together with ".join([*(each.words for each in chosen), *batch])]


def _all(memory: MemoryModel, chosen: Sequence[_Remedy]) -> MemoryModel:
    for each in chosen:
        memory = each.apply(memory)
    return memory


def _single(memory: MemoryModel) -> Iterator[_Remedy]:
    """What the settings leave to change, the least loss first."""
    settings = memory.settings
    if not settings.recompute:
        yield _Remedy("recompute=True", lambda m: _with(m, recompute=True))
    if settings.schedule is not Schedule.ONE_F_ONE_B:
        schedule = Schedule.ONE_F_ONE_B
        yield _Remedy(f"schedule={str(schedule)!r}", lambda m: _with(m, schedule=schedule))
    if settings.optimizer.state_bytes > 0:
        plain = OptimizerCost("torch.optim.SGD", 0.0)
        yield _Remedy("plain SGD as the optimizer", lambda m: _with(m, optimizer=plain))
    if memory.table.is_wide:
        yield _Remedy("half precision, model.to(torch.bfloat16)", _halved)


def _with(memory: MemoryModel, **changes: object) -> MemoryModel:
    settings = dataclasses.replace(memory.settings, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(memory, settings=settings)


def _halved(memory: MemoryModel) -> MemoryModel:
    """Every number in half its bytes; averaging goes on in float32."""
    table = memory.table
    halves: dict[str, object] = {
        name: getattr(table, name) // 2 for name in ("trained_bytes", "fixed_bytes", *_BATCH_FIELDS)
    }
    halved = _replaced(
        table,
        halves,
        peaks=RangeMax(table.peaks.values // 2),
        filling=RangeMax(table.filling.values // 2),
        largest=RangeMax(table.largest.values // 2),
        shared=tuple(
            dataclasses.replace(each, num_bytes=each.num_bytes // 2) for each in table.shared
        ),
    )
    return dataclasses.replace(memory, table=halved)


def _smaller_batch(memory: MemoryModel, groups: Sequence[Sequence[NodeSpec]]) -> list[str]:
    """The largest batch that fits, by bisection; activations grow with it in proportion."""
    low, high = 0, memory.table.num_samples
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(_with_batch(memory, middle), groups):
            low = middle
        else:
            high = middle
    if low == 0:
        return []
    return [f"an example batch of {low} instead of {memory.table.num_samples}"]


def _with_batch(memory: MemoryModel, num_samples: int) -> MemoryModel:
    table = memory.table
    share = num_samples / table.num_samples
    smaller: dict[str, object] = {
        name: np.ceil(getattr(table, name) * share).astype(np.int64) for name in _BATCH_FIELDS
    }
    peaks = np.ceil(table.peaks.values * share).astype(np.int64)
    # At each boundary's peak as many gradients are there as before.
    filling = table.filling.values - table.peaks.values + peaks
    changed = _replaced(
        table, smaller, peaks=RangeMax(peaks), filling=RangeMax(filling), num_samples=num_samples
    )
    return dataclasses.replace(memory, table=changed)


def _replaced(table: CostTable, values: dict[str, object], **more: object) -> CostTable:
    return dataclasses.replace(table, **values, **more)  # type: ignore[arg-type]


def _fits(memory: MemoryModel, groups: Sequence[Sequence[NodeSpec]]) -> bool:
    """Whether every group, or its larger nodes alone, can hold the model."""
    return all(
        any(StageTimes(memory, group[:size]).can_fit() for size in range(len(group), 0, -1))
        for group in groups
    )
