"""Fingerprints and records of configurations, and comparisons of them.

It uses `layers`, `resolving` and what is below them.
"""
