"""Atomic files, locks, tensor files and threads, shared by all components."""

MANIFEST = "manifest.json"
"""File of a checkpoint that lists its other files; a run directory has none."""
