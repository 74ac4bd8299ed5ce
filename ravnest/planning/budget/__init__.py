"""The memory of stages: what each holds, purpose by purpose, and the peak."""
