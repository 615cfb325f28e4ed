"""Values as drafts and resolved configurations hold them, and where each of them came from.

It uses `words` only.
"""
