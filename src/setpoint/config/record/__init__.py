"""What a run keeps of its configuration: fingerprints, records, and comparisons of them.

It uses `layers`, `resolving` and what is below them.
"""
