"""Events of a run, and the sinks they go to."""
