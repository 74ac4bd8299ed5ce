"""How a run averages, as its script chose it; alike on all members of all rings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ravnest.errors import ConfigError
from ravnest.stage.outer import OuterSettings, parse_outer
from ravnest.wire.frame import Codec
from ravnest.wire.round_codec import round_codec


@dataclass(frozen=True, slots=True)
class AveragingSettings:
    """What a round exchanges.

    Attributes:
        outer: the outer optimizer; None: rounds average the weights themselves.
        codec: of pseudo-gradients in float32 on the wire; RAW without an outer optimizer.
        overlap_steps: optimizer steps that go on while a round is under way; at the last of them
            its correction is applied. 0: training waits for the round.
        num_fragments: parts of the model that are averaged in turn, each as often as all of it
            would be.
        timeout_s: longest wait for a member within a round; None: the transport's.
    """

    outer: OuterSettings | None = None
    codec: Codec = Codec.RAW
    overlap_steps: int = 0
    num_fragments: int = 1
    timeout_s: float | None = None

    @property
    def text(self) -> str:
        """All of it in words, to be compared between nodes."""
        words = ["plain" if self.outer is None else f"{self.outer.text}, {self.codec.name.lower()}"]
        if self.overlap_steps:
            words.append(f"overlapping {self.overlap_steps} steps")
        if self.num_fragments > 1:
            words.append(f"{self.num_fragments} fragments")
        return ", ".join(words)


def parse_averaging(
    *,
    outer_optimizer: Any = None,
    outer_optimizer_params: Mapping[str, Any] | None = None,
    compression: Any = False,
    overlap: Any = 0,
    fragments: Any = 1,
    reduce_factor: int | None = None,
    timeout_s: float | None = None,
) -> AveragingSettings:
    """The options of `Node` about averaging.

    Raises:
        ConfigError: one of them is impossible; the message names it and what was expected.
    """
    codec = round_codec(compression)
    is_compressed = codec is not Codec.RAW
    outer = parse_outer(outer_optimizer, outer_optimizer_params, is_compressed=is_compressed)
    _check("averaging_overlap", overlap, 0)
    _check("averaging_fragments", fragments, 1)
    if (overlap or fragments > 1) and reduce_factor is None:
        raise ConfigError(
            f"averaging_overlap={overlap} and averaging_fragments={fragments} go by optimizer "
            "steps, and reduce_factor is not set: rounds are once per epoch",
            hint="set reduce_factor as well",
        )
    if reduce_factor is not None and max(overlap, 1) * fragments > reduce_factor:
        raise ConfigError(
            f"reduce_factor={reduce_factor} with averaging_fragments={fragments} leaves "
            f"{reduce_factor / fragments:.3g} steps between rounds, averaging_overlap={overlap} "
            "takes more; expected at most as many",
            hint=f"set averaging_overlap to {reduce_factor // fragments} or less"
            if reduce_factor >= fragments
            else f"set averaging_fragments to {reduce_factor} or less",
        )
    return AveragingSettings(outer, codec, overlap, fragments, timeout_s)


def _check(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name}={value!r} is not possible; expected a whole number from {least} on"
        )
