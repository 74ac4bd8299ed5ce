"""Nodes to clusters: what is searched how, who is left out, and what is said when nothing fits."""
