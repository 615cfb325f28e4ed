"""The lowest package: errors, and the spelling of names, paths and values.

It is independent of fields and sections, and imports no other part of the kernel.
"""
