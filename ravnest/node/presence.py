"""How a node's presence among the others ends: once, with a goodbye or with why it failed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ravnest.errors import TrainingError
from ravnest.metrics.events import EventLog, EventName
from ravnest.node.couriers import Courier
from ravnest.node.failing import reason_of
from ravnest.plan.model import NodePlan


class Presence:
    """Open from the start of the transport until the first of `close`, `abort` and `owner`'s end.

    Args:
        owner: ends it when it is garbage or the interpreter exits.
    """

    def __init__(self, owner: object, plan: NodePlan, courier: Courier, events: EventLog) -> None:
        self._plan = plan
        self._courier = courier
        self._events = events
        # What it calls must not lead to the owner, which would then never be garbage.
        self._finalizer = weakref.finalize(owner, _end, courier, events)

    def close(self) -> None:
        """Says goodbye to the other nodes and frees the port. Idempotent."""
        if self._finalizer.detach() is not None:
            _close(self._courier, self._events)

    def abort(self, error: BaseException) -> None:
        """Tells the other nodes that this one failed, and why. Idempotent."""
        if self._finalizer.detach() is not None:
            _abort(self._courier, self._events, reason_of(self._plan, error))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever fails here also ends the other nodes, with this node's reason."""
        if not self._finalizer.alive:
            raise TrainingError(f"node_{self._plan.node_id} is closed")
        try:
            yield
        except BaseException as error:
            self.abort(error)
            raise


def _close(courier: Courier, events: EventLog) -> None:
    try:
        courier.close()
        events.emit(EventName.RUN_ENDED)
    except Exception as error:
        events.emit(EventName.FAILED, reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        events.close()


def _abort(courier: Courier, events: EventLog, reason: str) -> None:
    events.emit(EventName.FAILED, reason=reason)
    courier.abort(reason)
    events.close()


def _end(courier: Courier, events: EventLog) -> None:
    """Not every script calls `close`."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and not hasattr(sys, "ps1"):
        # The script died outside of our calls: the other nodes are told why.
        _abort(courier, events, f"{type(error).__name__}: {error}")
    else:
        _close(courier, events)
