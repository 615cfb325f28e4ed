"""Components that a configuration names by an import path, with their arguments as fields.

It uses `draft` and what is below it.
"""
