"""Models that return a cache of keys and values unless told not to, as those of transformers do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def caching_configs(model: nn.Module) -> list[Any]:
    """The distinct `config` objects of a model's modules whose `use_cache` is True."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for config in _nested(getattr(module, "config", None)):
            if getattr(config, "use_cache", None) is True:
                found[id(config)] = config
    return list(found.values())


def _nested(config: Any) -> Iterator[Any]:
    """A config and the configs of a composed model inside it, as encoder-decoders have."""
    if config is None:
        return
    yield config
    for value in list(getattr(config, "__dict__", {}).values()):
        if hasattr(value, "use_cache"):
            yield value


@contextmanager
def caches_off(model: nn.Module) -> Iterator[None]:
    """Sets `use_cache` to False in all configs of a model that have it on; puts it back after."""
    configs = caching_configs(model)
    try:
        for config in configs:
            config.use_cache = False
        yield
    finally:
        for config in configs:
            config.use_cache = True
