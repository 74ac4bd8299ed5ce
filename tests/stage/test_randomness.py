"""Keyed randomness and set_seed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ravnest.plan.identity import MicrobatchId
from ravnest.stage.randomness import KeyedRandomness, operator_seed, set_seed


def draw(randomness: KeyedRandomness, microbatch: MicrobatchId, position: int) -> torch.Tensor:
    with randomness.microbatch(microbatch) as seed_operator:
        seed_operator(position)
        return torch.rand(4)


def test_streams_repeat_and_differ_by_every_part_of_the_key() -> None:
    base = KeyedRandomness(1, 0, torch.device("cpu"))
    first = draw(base, MicrobatchId(0, 0), 3)
    assert torch.equal(first, draw(base, MicrobatchId(0, 0), 3))
    others = [
        draw(base, MicrobatchId(0, 1), 3),
        draw(base, MicrobatchId(1, 0), 3),
        draw(base, MicrobatchId(0, 0), 4),
        draw(KeyedRandomness(2, 0, torch.device("cpu")), MicrobatchId(0, 0), 3),
        draw(KeyedRandomness(1, 1, torch.device("cpu")), MicrobatchId(0, 0), 3),
    ]
    assert not any(torch.equal(first, other) for other in others)


def test_the_process_generator_is_left_as_it_was() -> None:
    set_seed(7)
    expected = torch.rand(3)
    set_seed(7)
    draw(KeyedRandomness(1, 0, torch.device("cpu")), MicrobatchId(0, 0), 0)
    assert torch.equal(torch.rand(3), expected)


def test_operator_seeds_are_stable_across_versions() -> None:
    """A changed hash would change every run's dropout; this pins it."""
    assert operator_seed(42, 0, MicrobatchId(1, 2), 3) == 12819462095014531471
    assert 0 <= operator_seed(2**64 - 1, 9, MicrobatchId(9, 9), 9) < 2**64


def test_set_seed_seeds_all_three() -> None:
    set_seed(11)
    first = (random.random(), np.random.rand(), torch.rand(1).item())
    set_seed(11)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "42", None])
def test_an_impossible_seed_is_a_clear_value_error(seed: object) -> None:
    with pytest.raises(
        ValueError, match=r"seed=.* is not possible; expected an integer in 0 \.\. "
    ):
        set_seed(seed)  # type: ignore[arg-type]
