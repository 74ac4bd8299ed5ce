"""A plan as a discrete-event prediction: run event by event, without computing anything."""
