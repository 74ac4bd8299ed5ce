"""Models that return a cache of keys and values, as those of transformers do by default."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from capture_chain import even_cuts, through_files
from capture_oracle import assert_stages_equal
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.errors import CaptureError


class Config:
    """Settings as an object that modules share."""

    def __init__(self, **values: Any) -> None:
        vars(self).update({"use_cache": True} | values)


class Cache:
    """A cache that is no container."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []


class Decoder(nn.Module):
    """Returns a cache where its settings, or the caller, want one."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed, self.keys = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, use_cache: bool | None = None) -> dict[str, Any]:
        wanted = self.config.use_cache if use_cache is None else use_cache
        cache = Cache() if wanted else None
        h = torch.tanh(self.keys(self.embed(ids)))
        if cache is not None:
            cache.keys.append(h)
        return {"logits": self.head(h), "past_key_values": cache}


class Composed(nn.Module):
    """Has the settings of its part only inside its own."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.decoder = config, Decoder(config.text_config)

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        return self.decoder(ids)


def ids(batch: int) -> torch.Tensor:
    return torch.randint(0, 20, (batch, 5))


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize(
    "make", [lambda: Decoder(Config()), lambda: Composed(Config(text_config=Config()))]
)
def test_cache_is_left_out_with_a_warning(
    make: Any, num_stages: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    with caplog.at_level(logging.WARNING):
        captured = capture_model(model, (ids(4),))
    assert [r for r in caplog.records if "hold no cache of keys and values" in r.message]
    decoder = getattr(model, "decoder", model)
    assert model.config.use_cache
    assert decoder.config.use_cache

    stages = through_files(captured, even_cuts(captured, num_stages))
    assert len(stages) == num_stages
    decoder.config.use_cache = False
    for batch in (4, 3):
        assert_stages_equal(stages, model, (ids(batch),))


def test_no_warning_where_the_cache_is_not_in_the_way(caplog: pytest.LogCaptureFixture) -> None:
    model = Decoder(Config())
    with caplog.at_level(logging.WARNING):
        capture_model(model, (ids(4),), {"use_cache": False})
    assert not caplog.records
    assert model.config.use_cache


def test_example_that_asks_for_the_cache() -> None:
    model = Decoder(Config())
    with pytest.raises(CaptureError, match="is a Cache") as caught:
        capture_model(model, (ids(4),), {"use_cache": True})
    message = str(caught.value)
    assert "leave use_cache=True out of the example" in message
    assert "tried as it is" in message
    assert "tried with config.use_cache = False" in message
    assert model.config.use_cache
