"""Applies changes to the arguments of a call of clusterize: options, and the example's batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ravnest.cli.whatif.changes import BatchChanged, Change, OptionChanged
from ravnest.errors import ConfigError

_REPLACES = {"optimizer": "optimizer_states"}
"""An option and the one that says the same in another way."""


def changed_arguments(
    function: Callable[..., Any], arguments: dict[str, Any], changes: Sequence[Change]
) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the changed call, and what else than an option was changed, in words.

    Args:
        function: what is called.
        arguments: by name, as the script calls it.
        changes: those of nodes are passed over.

    Raises:
        ConfigError: the function has no such option, or the example cannot be changed so.
    """
    changed, notes = dict(arguments), []
    for change in changes:
        if isinstance(change, OptionChanged):
            _require_option(function, change)
            changed.pop(_REPLACES.get(change.name, ""), None)
            changed[change.name] = change.value
        elif isinstance(change, BatchChanged):
            from ravnest.cli.whatif.batch import rebatched  # needs torch, which others do not

            example = (changed.get("example_args", ()), changed.get("example_kwargs"))
            (args, kwargs), note = rebatched(example, change)
            changed |= {"example_args": args, "example_kwargs": kwargs}
            notes.append(note)
    return changed, notes


def _require_option(function: Callable[..., Any], change: OptionChanged) -> None:
    known = inspect.signature(function).parameters
    if change.name not in known:
        raise ConfigError(
            f"'{change}': clusterize of this version of ravnest has no option {change.name!r}",
            hint="leave the change out, or use a version that has the option",
        )
