"""From a draft to a resolved configuration: references, derived values, dead values and checks.

It uses `draft` and what is below it.
"""
