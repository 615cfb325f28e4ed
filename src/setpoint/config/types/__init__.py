"""Field types: a class for each kind of annotation, which reads and writes values.

It uses `values` and `words`; it knows sections only as nodes.
"""
