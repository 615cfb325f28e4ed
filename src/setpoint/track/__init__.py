"""Record of a run and its display: run directory, metrics, events, progress.

Importing this package imports neither torch nor rich.
"""
