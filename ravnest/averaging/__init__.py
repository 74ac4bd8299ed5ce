"""Averaging between clusters: rounds and the ring all-reduce."""
