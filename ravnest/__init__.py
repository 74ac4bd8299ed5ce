"""Ravnest: train any PyTorch model across unequal machines on ordinary links.

Names are loaded on first use, so that `import ravnest` costs no import of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ravnest.checkpoint.fusion import model_fusion
    from ravnest.errors import RavnestError
    from ravnest.node.node import Node
    from ravnest.planning.clusterize import clusterize
    from ravnest.stage.randomness import set_seed
    from ravnest.trainer.sharding import shard_loader
    from ravnest.trainer.trainer import Trainer

__all__ = [
    "Node",
    "RavnestError",
    "Trainer",
    "clusterize",
    "model_fusion",
    "set_seed",
    "shard_loader",
]

__version__ = "0.1.0"

_HOMES = {
    "Node": "ravnest.node.node",
    "RavnestError": "ravnest.errors",
    "Trainer": "ravnest.trainer.trainer",
    "clusterize": "ravnest.planning.clusterize",
    "model_fusion": "ravnest.checkpoint.fusion",
    "set_seed": "ravnest.stage.randomness",
    "shard_loader": "ravnest.trainer.sharding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ravnest' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
