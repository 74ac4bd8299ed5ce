"""Clusters of many nodes by column generation, and a bound that no plan exceeds."""
