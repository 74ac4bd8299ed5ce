"""Averaging between clusters: rounds and the ring all-reduce."""

from ravnest.averaging.averager import Averager, RoundResult

__all__ = ["Averager", "RoundResult"]
