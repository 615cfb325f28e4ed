"""Config itself, and what can be done with a tree of sections before and after it is resolved.

It uses `migrate`, `schema` and what is below them.
"""
