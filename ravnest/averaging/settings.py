"""How a run averages, as its script chose it; alike on all members of all rings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ravnest.stage.outer import OuterSettings, parse_outer
from ravnest.wire.frame import Codec
from ravnest.wire.round_codec import round_codec


@dataclass(frozen=True, slots=True)
class AveragingSettings:
    """What a round exchanges.

    Attributes:
        outer: the outer optimizer; None: rounds average the weights themselves.
        codec: of pseudo-gradients in float32 on the wire; RAW without an outer optimizer.
    """

    outer: OuterSettings | None = None
    codec: Codec = Codec.RAW

    @property
    def text(self) -> str:
        """All of it in words, to be compared between nodes."""
        if self.outer is None:
            return "plain"
        return f"{self.outer.text}, {self.codec.name.lower()}"


def parse_averaging(
    *, outer_optimizer: Any, outer_optimizer_params: Mapping[str, Any] | None, compression: Any
) -> AveragingSettings:
    """The options of `Node` about averaging.

    Raises:
        ConfigError: one of them is impossible; the message names it and what was expected.
    """
    codec = round_codec(compression)
    is_compressed = codec is not Codec.RAW
    outer = parse_outer(outer_optimizer, outer_optimizer_params, is_compressed=is_compressed)
    return AveragingSettings(outer, codec)
