"""The time model: how long an optimizer step of a pipeline takes, exactly, by its schedule."""
