"""Values of drafts and resolved configurations, and their origins.

Uses only `words`.
"""
