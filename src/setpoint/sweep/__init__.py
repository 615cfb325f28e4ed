"""Sweeps of training runs: the launcher, its record, search, and comparison."""
