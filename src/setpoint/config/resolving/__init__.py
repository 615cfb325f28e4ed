"""From a draft to a resolved configuration: references, derived values, dead values and checks.

Uses `draft` and the parts below it.
"""
