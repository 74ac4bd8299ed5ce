"""What rounds with an outer optimizer keep, held against the objects that keep it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from averaging_harness import membership, play

from ravnest.averaging import Averager
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.settings import parse_averaging
from ravnest.planning.budget.rounds import copies_kept
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec

SIZES = (1000, 300, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("optimizer", "compression", "expected"),
    [
        (None, False, 0.0),
        ("sgd", False, 1.0),
        ("nesterov", False, 2.0),
        (None, "int8", 3.0),
        ("nesterov", "int8", 4.0),
        (torch.optim.Adam, False, 3.0),
    ],
)
def test_what_is_kept_is_what_is_counted(
    optimizer: Any, compression: Any, expected: float, dtype: torch.dtype
) -> None:
    chosen = parse_averaging(
        outer_optimizer=optimizer, outer_optimizer_params=None, compression=compression
    )
    tensors = [torch.zeros(size, dtype=dtype) for size in SIZES]
    assert copies_kept(optimizer, None, compression, tensors) == pytest.approx(expected)
    if chosen.outer is None:
        return
    settings = chosen.outer

    def work(node: int, transport: Transport) -> int:
        live = {str(i): tensor.clone() for i, tensor in enumerate(tensors)}
        outer = OuterOptimizer(settings, live)
        ring = membership(node, [0, 1], list(live))
        averager = Averager(node, [ring], transport, codec=chosen.codec, outer=outer)
        averager.average(live, round_id=0, num_samples=1, finished=False)
        momenta = [each for name in live for each in outer.state_of(name).values() if each.dim()]
        lossy = chosen.codec is not Codec.RAW
        kept = [averager.feedback_of(0).kept] * 2 if lossy else []
        return sum(each.nbytes for each in (*outer.anchors.values(), *momenta, *kept))

    assert play([0, 1], work)[0] == pytest.approx(expected * 4 * sum(SIZES))
