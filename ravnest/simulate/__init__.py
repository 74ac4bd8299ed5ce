"""A plan as a discrete-event prediction."""
