"""Ravnest: train any PyTorch model across unequal machines on ordinary links."""
