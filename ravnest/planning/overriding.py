"""Lets whoever runs a script have the calls of clusterize in it, instead of what they would do.

Both overrides are context variables: they hold for the code that runs inside the `with` block, in
its thread and its tasks, and for nothing else. Knows neither torch nor what is done with a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeAlias

from ravnest.config import NodeConfig
from ravnest.plan.model import Plan

P = ParamSpec("P")

TakeCall: TypeAlias = Callable[[Callable[..., Plan], dict[str, Any]], Plan]
"""Gets the function and the arguments of the call, by name; what it returns the caller gets."""

ChangeNodes: TypeAlias = Callable[[Sequence[NodeConfig]], tuple[NodeConfig, ...]]
"""Gets the nodes as configured; the plan is made for those it returns."""

_take_call: ContextVar[TakeCall | None] = ContextVar("take_call", default=None)
_change_nodes: ContextVar[ChangeNodes | None] = ContextVar("change_nodes", default=None)


def overridable(function: Callable[P, Plan]) -> Callable[P, Plan]:
    """Decorates a function that returns a plan: its calls can be taken, and others are printed.

    Whoever takes a call gets the function as it was before this decorator, which prints nothing.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Plan:
        take = _take_call.get()
        if take is not None:
            bound = inspect.signature(function).bind(*args, **kwargs)
            return take(function, dict(bound.arguments))
        plan = function(*args, **kwargs)
        print(plan)  # noqa: T201  the contract's own output
        return plan

    return call


@contextmanager
def taking_calls(take: TakeCall) -> Iterator[None]:
    """Inside, calls of an overridable function go to `take` and do nothing themselves."""
    token = _take_call.set(take)
    try:
        yield
    finally:
        _take_call.reset(token)


@contextmanager
def changing_nodes(change: ChangeNodes) -> Iterator[None]:
    """Inside, plans are made for the nodes that `change` makes of the configured ones."""
    token = _change_nodes.set(change)
    try:
        yield
    finally:
        _change_nodes.reset(token)


def nodes_to_plan_for(configured: Sequence[NodeConfig]) -> tuple[NodeConfig, ...]:
    """The configured nodes, changed where that is asked for; what clusterize plans with."""
    change = _change_nodes.get()
    return tuple(configured) if change is None else change(configured)
