"""Field types: one class for each kind of annotation, which reads and writes values.

Uses `values` and `words`; sections are known only as nodes.
"""
