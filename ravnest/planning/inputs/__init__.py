"""What planning goes by: choices of the user, and graph costs summed up for quick look-ups."""
