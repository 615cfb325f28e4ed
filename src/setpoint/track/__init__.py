"""What a run leaves behind and what people see of it: run directory, metrics, events, progress.

Importing this package imports neither torch nor rich.
"""
