"""Changes to try on a plan: what they are, how they are written, what they are applied to."""
