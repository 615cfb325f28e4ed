"""`Config` and operations on trees of sections before and after they are resolved.

Uses `migrations`, `schema` and the parts below them.
"""
