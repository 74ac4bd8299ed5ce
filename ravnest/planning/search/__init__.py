"""The best pipelines of given nodes, and the best clusters of few nodes, both exact."""
