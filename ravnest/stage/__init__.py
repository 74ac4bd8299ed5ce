"""One stage on one device: engine, schedules, weight versions, keyed randomness."""
