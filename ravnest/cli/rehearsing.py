"""Collects what the calls of clusterize in a script would plan, as they are and with changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ravnest.cli.whatif.arguments import changed_arguments
from ravnest.cli.whatif.changes import Change
from ravnest.cli.whatif.nodes import changed_nodes
from ravnest.errors import RavnestError
from ravnest.plan.model import Plan
from ravnest.planning.overriding import changing_nodes

Outcome: TypeAlias = Plan | RavnestError
"""A plan, or why there is none."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One call of clusterize.

    Attributes:
        plan: of the call as the script makes it.
        changed: of the call with the changes, None when none were asked for.
        notes: what the changes did to the example, in words.
    """

    plan: Outcome
    changed: Outcome | None = None
    notes: tuple[str, ...] = ()


class Rehearsal:
    """Answers calls of clusterize with dry runs, see `overriding.taking_calls`.

    Args:
        changes: each call is planned a second time with them; with none, only once.
    """

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._changes = tuple(changes)
        self.calls: list[Rehearsed] = []

    def take(self, function: Callable[..., Plan], arguments: dict[str, Any]) -> Plan:
        """Plans one call and keeps what came of it.

        Returns:
            The plan of the call as it is, so that the script goes on as it would; when only the
            changed call has a plan, that one.

        Raises:
            RavnestError: neither has a plan.
        """
        plan = _outcome(function, arguments)
        changed, notes = self._changed(function, arguments) if self._changes else (None, ())
        self.calls.append(Rehearsed(plan, changed, notes))
        for outcome in (plan, changed):
            if isinstance(outcome, Plan):
                return outcome
        assert isinstance(plan, RavnestError)
        raise plan

    def _changed(
        self, function: Callable[..., Plan], arguments: dict[str, Any]
    ) -> tuple[Outcome, tuple[str, ...]]:
        try:
            changed, notes = changed_arguments(function, arguments, self._changes)
        except RavnestError as error:
            return error, ()
        with changing_nodes(lambda nodes: changed_nodes(nodes, self._changes)):
            return _outcome(function, changed), tuple(notes)


def _outcome(function: Callable[..., Plan], arguments: dict[str, Any]) -> Outcome:
    try:
        return function(**{**arguments, "dry_run": True})
    except RavnestError as error:
        return error
