"""Values of drafts and resolved configurations, and their origins.

It uses `words` only.
"""
