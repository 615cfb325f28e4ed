"""Fingerprints and records of configurations, and comparisons of them.

Uses `layers`, `resolving` and the parts below them.
"""
