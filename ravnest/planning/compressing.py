"""What `compression="auto"` does on each link of a pipeline, from predicted times alone.

A link gets the mildest codec that leaves the step within `TOLERANCE` of what it takes with the
strongest on every link: nothing, half precision, or 8 bits; never fewer, which a user has to ask
for. Counted is what a codec saves on the wire, and what it costs the processors at both ends. The
same times give the same choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ravnest.planning.timing.parts import LinkTime, MessageTime, PipelineTime, StageTime
from ravnest.planning.timing.steady import steady_state
from ravnest.wire.compression import COMPRESSIONS, float32_share

TOLERANCE = 0.05
_MAX_TIMED = 12  # stages up to which every choice is timed by the exact schedule


@dataclass(frozen=True, slots=True)
class RawLink:
    """A link as it would be without compression.

    Attributes:
        activation_bytes, gradient_bytes: per microbatch.
        rates: bytes per second of the earlier node's link, and of the later's.
        latency_s: one-way delay.
    """

    activation_bytes: float
    gradient_bytes: float
    rates: tuple[float, float]
    latency_s: float

    def timed(self, activation: float, gradient: float) -> LinkTime:
        """Its times with so many bytes on the wire per byte of an activation and of a gradient."""
        earlier, later = self.rates
        there, back = activation * self.activation_bytes, gradient * self.gradient_bytes
        return LinkTime(
            MessageTime(there / earlier, there / later),
            MessageTime(back / later, back / earlier),
            self.latency_s,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The compression of a link by name, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Level:
    """A compression that may be chosen.

    Attributes:
        activation, gradient: bytes on the wire per byte.
        encode_s, decode_s: processor seconds per byte of an activation, of gradients likewise;
            measured on a core of 32 GFLOP/s.
    """

    name: str
    activation: float
    gradient: float
    encode_s: float = 0.0
    decode_s: float = 0.0


def _level(name: str, *, encode_s: float, decode_s: float) -> _Level:
    codecs = COMPRESSIONS[name]
    shares = float32_share(codecs.activation), float32_share(codecs.gradient)
    return _Level(name, *shares, encode_s, decode_s)


_LEVELS = (
    _Level("none", 1.0, 1.0),
    _level("fp16", encode_s=0.8e-9, decode_s=0.6e-9),
    _level("int8", encode_s=1.3e-9, decode_s=0.6e-9),
)
_STRONGEST = len(_LEVELS) - 1


def choose_compressions(pipeline: PipelineTime, links: Sequence[RawLink]) -> tuple[Choice, ...]:
    """What each link of a pipeline gets.

    Args:
        pipeline: its stages and schedule; its own links do not count.
        links: between stages k and k + 1.
    """
    if (reason := _why_none(pipeline, links)) is not None:
        return (Choice(_LEVELS[0].name, reason),) * len(links)
    pace = _step_s if len(pipeline.stages) <= _MAX_TIMED else _bound_s

    def seconds(levels: Sequence[int]) -> float:
        return pace(_compressed(pipeline, links, [_LEVELS[level] for level in levels]))

    levels = [_STRONGEST] * len(links)
    best_s, plain_s = seconds(levels), seconds([0] * len(links))
    best = f"{best_s:.3g} s with {_LEVELS[_STRONGEST].name} on every link"
    if plain_s <= (1 + TOLERANCE) * best_s:
        return (Choice(_LEVELS[0].name, f"a step takes {plain_s:.3g} s, {best}"),) * len(links)
    choices = []
    for link in range(len(links)):
        tried_s = 0.0
        for level in range(_STRONGEST):
            milder_s = seconds([*levels[:link], level, *levels[link + 1 :]])
            if milder_s <= (1 + TOLERANCE) * best_s:
                levels[link], tried_s = level, milder_s
                break
            tried_s = milder_s
        level = levels[link]
        told = _LEVELS[level - 1 if level == _STRONGEST else level].name
        choices.append(
            Choice(_LEVELS[level].name, f"a step takes {tried_s:.3g} s with {told} here, {best}")
        )
    return tuple(choices)


def _why_none(pipeline: PipelineTime, links: Sequence[RawLink]) -> str | None:
    """Why no codec can shorten a step much, where that is seen without timing the schedule.

    Nothing saves more than all of the sending, even if nothing were sent while stages compute.
    """
    plain = [link.timed(1.0, 1.0) for link in links]
    sending_s = sum(link.activation.seconds + link.gradient.seconds for link in plain)
    computing_s = max(stage.forward_s + stage.backward_s for stage in pipeline.stages)
    if sending_s > TOLERANCE * computing_s:
        return None
    return (
        f"sending over all links takes {sending_s:.3g} s per microbatch, "
        f"the slowest stage {computing_s:.3g} s"
    )


def _compressed(
    pipeline: PipelineTime, links: Sequence[RawLink], levels: Sequence[_Level]
) -> PipelineTime:
    """The pipeline with its links so compressed, and its stages busy with that as well."""
    stages = list(pipeline.stages)
    times = []
    for k, (link, level) in enumerate(zip(links, levels, strict=True)):
        there, back = link.activation_bytes, link.gradient_bytes
        times.append(link.timed(level.activation, level.gradient))
        stages[k] = _busier(stages[k], there * level.encode_s, back * level.decode_s)
        stages[k + 1] = _busier(stages[k + 1], there * level.decode_s, back * level.encode_s)
    return replace(pipeline, stages=tuple(stages), links=tuple(times))


def _busier(stage: StageTime, forward_s: float, backward_s: float) -> StageTime:
    return replace(
        stage, forward_s=stage.forward_s + forward_s, backward_s=stage.backward_s + backward_s
    )


def _step_s(pipeline: PipelineTime) -> float:
    return steady_state(pipeline).step_time_s


def _bound_s(pipeline: PipelineTime) -> float:
    return pipeline.update_frequency * pipeline.slowest_part_s


def ratios_of(name: str) -> tuple[float, float]:
    """Bytes on the wire per byte of an activation, and of a gradient."""
    level = next(level for level in _LEVELS if level.name == name)
    return level.activation, level.gradient
