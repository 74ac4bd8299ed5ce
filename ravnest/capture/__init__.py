"""nn.Module to graph, costs, legal cuts; stage graphs and their files."""
