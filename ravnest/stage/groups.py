"""Parameter groups of an optimizer, chosen by the names of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from ravnest.errors import ConfigError

Groups = Mapping[str, Mapping[str, Any]]
"""By pattern of a name, as in a shell (`*.bias`), the options of the parameters that match it."""


def grouped(
    parameters: Mapping[str, torch.nn.Parameter], groups: Groups
) -> list[torch.nn.Parameter] | list[dict[str, Any]]:
    """What an optimizer takes: the parameters, or groups of them if there are patterns.

    The first group has what no pattern matches, then comes one per pattern, in their order; a
    parameter is in the first that it matches. A stage has all of them, empty ones too, so that a
    scheduler with a value per group finds the same groups everywhere.
    """
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    if not groups:
        return list(trained.values())
    made: list[dict[str, Any]] = [{"params": []}]
    made += [{"params": [], **options} for options in groups.values()]
    for name, parameter in trained.items():
        matching = (i for i, pattern in enumerate(groups, 1) if fnmatchcase(name, pattern))
        made[next(matching, 0)]["params"].append(parameter)
    return made


def unmatched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Patterns that no name matches."""
    known = list(names)
    return [each for each in patterns if not any(fnmatchcase(name, each) for name in known)]


def check_groups(groups: object) -> None:
    """Raises ConfigError unless it is a mapping from patterns to options."""
    is_mapping = isinstance(groups, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) and "params" not in options
        for pattern, options in groups.items()
    )
    if not is_mapping:
        raise ConfigError(
            f"param_groups={groups!r} is not possible; expected options by pattern of a name",
            hint='write param_groups={"*.bias": {"weight_decay": 0.0}}',
        )


def refuse_unmatched(patterns: Sequence[str]) -> None:
    """Raises ConfigError when there are patterns that no parameter of the whole model matches."""
    if patterns:
        raise ConfigError(
            f"param_groups has patterns that match no parameter of the model: {list(patterns)}",
            hint="names are those of model.named_parameters(); `*` stands for anything, dots too",
        )
