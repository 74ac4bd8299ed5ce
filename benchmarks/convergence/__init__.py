"""What late gradients cost in loss, schedule by schedule, and what compensation gives back."""
