"""What averaging rounds keep in memory from one to the next, as chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ravnest.errors import ConfigError
from ravnest.planning.budget.optimizer_states import ask_optimizer
from ravnest.stage.outer import parse_outer
from ravnest.wire.frame import Codec
from ravnest.wire.round_codec import round_codec

_ANCHOR = 1
_FEEDBACK = 2
"""What compression dropped, and a place for what the round in progress drops."""


def copies_kept(
    outer_optimizer: Any,
    outer_optimizer_params: Mapping[str, Any] | None,
    averaging_compression: bool | str,
    trained: Sequence[torch.Tensor],
) -> float:
    """Copies of what is trained, in the dtype of averaging, beside the one that a round works on.

    Args:
        outer_optimizer, outer_optimizer_params, averaging_compression: as for `Node`.
        trained: the trainable parameters; only their shapes and dtypes count.

    Raises:
        ConfigError: one of them is impossible.
    """
    is_compressed = round_codec(averaging_compression) is not Codec.RAW
    outer = parse_outer(outer_optimizer, outer_optimizer_params, is_compressed=is_compressed)
    if outer is None:
        return 0.0
    states = ask_optimizer(outer.factory, outer.params, trained).state_bytes
    return _ANCHOR + states + _FEEDBACK * is_compressed


def keeps_what_is_sent(averaging_overlap: int) -> bool:
    """Whether nodes keep a copy of what they sent; ConfigError for an impossible overlap."""
    is_count = isinstance(averaging_overlap, int) and not isinstance(averaging_overlap, bool)
    if not is_count or averaging_overlap < 0:
        raise ConfigError(
            f"averaging_overlap={averaging_overlap!r} is not possible; expected a whole number "
            "of optimizer steps from 0 on"
        )
    return averaging_overlap > 0
