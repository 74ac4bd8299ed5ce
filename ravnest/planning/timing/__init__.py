"""The time model: how long a pipeline's step takes, by its schedule, and what it pays to start early."""
