"""Spaces of sweeps: axes, distributions, and the points that a file or a command line describes."""
