"""Config itself, and what can be done with a tree of sections before and after it is resolved.

It uses `migrations`, `schema` and what is below them.
"""
