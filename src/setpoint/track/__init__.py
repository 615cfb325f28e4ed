"""Record and display of a run: run directory, metrics, events, progress.

Importing this package imports neither torch nor rich.
"""
