"""How a loader's batch becomes the model's inputs, when the script does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ravnest.errors import TrainingError


def split_batch(
    batch: Any, argument_names: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs of the model out of a batch.

    A tensor is the one input. Of a mapping, the entries that the captured model takes are
    inputs, by name. Of a tuple or list, the first items are inputs, as many as the model takes, but
    at least the last item is left over as the target when there is more than one.

    Raises:
        TrainingError: the batch has another form.
    """
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, Mapping):
        named = {name: batch[name] for name in argument_names if name in batch}
        if named:
            return (), named
        raise TrainingError(
            f"no entry of the batch is an input of the model: it has {sorted(map(str, batch))}, "
            f"the model takes {', '.join(argument_names)}",
            hint="override Trainer.inputs_of(batch)",
        )
    if isinstance(batch, (tuple, list)) and batch:
        num_inputs = min(len(argument_names), max(1, len(batch) - 1))
        return tuple(batch[:num_inputs]), {}
    raise TrainingError(
        f"a batch of type {type(batch).__name__} has no known form; "
        "expected a tensor, a tuple, a list or a mapping",
        hint="override Trainer.inputs_of(batch)",
    )
