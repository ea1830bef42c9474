"""Scaling laws: the points (parameters, tokens, seed, loss, floor) of runs that a law is fitted to."""
