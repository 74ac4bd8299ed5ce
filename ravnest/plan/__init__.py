"""What planning returns, as pure data: the plan, its files, its text."""
