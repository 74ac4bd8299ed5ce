"""Events of a run, and the sinks they go to."""

from ravnest.metrics.events import EventLog, EventName
from ravnest.metrics.progress import ProgressLine

__all__ = ["EventLog", "EventName", "ProgressLine"]
