"""What `ravnest simulate` is told of single nodes: `node.3=0.5`, `node.2@30s+10s`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ravnest.errors import ConfigError
from ravnest.simulate.settings import Failure

_NODE = r"(?:node[._])?(?P<node>[0-9]+)"
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SPEED = re.compile(rf"{_NODE}=(?P<factor>{_NUMBER})", re.ASCII)
_TIME = rf"({_NUMBER})(ms|s|min|h)?"
_FAILURE = re.compile(rf"{_NODE}@{_TIME}(?:\+{_TIME})?", re.ASCII)
_SECONDS = {None: 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_speeds(texts: Sequence[str]) -> dict[int, float]:
    """By node id, how fast it computes beside the plan.

    Raises:
        ConfigError: a text is no speed of a node, or a node occurs twice.
    """
    speeds: dict[int, float] = {}
    for text in texts:
        match = _SPEED.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"--speed {text!r} is no speed of a node",
                hint="write node.3=0.5 for half as fast as planned",
            )
        node_id = int(match["node"])
        if node_id in speeds:
            raise ConfigError(f"--speed says of node {node_id} twice how fast it is")
        speeds[node_id] = float(match["factor"])
    return speeds


def parse_failures(texts: Sequence[str]) -> tuple[Failure, ...]:
    """The failures, in the order given.

    Raises:
        ConfigError: a text is no failure of a node.
    """
    return tuple(_failure(text) for text in texts)


def _failure(text: str) -> Failure:
    match = _FAILURE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--fail {text!r} is no failure of a node",
            hint="write node.2@30s for its end after 30 s, node.2@30s+10s for 10 s of silence; "
            "units are ms, s, min and h",
        )
    node_id, at, at_unit, duration, duration_unit = match.groups()
    duration_s = None if duration is None else float(duration) * _SECONDS[duration_unit]
    return Failure(int(node_id), float(at) * _SECONDS[at_unit], duration_s)
