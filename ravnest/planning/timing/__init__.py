"""How long a step of a pipeline takes, by its schedule, and what it pays to start early."""
