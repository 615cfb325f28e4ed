"""The lowest package: errors, and the spelling of names, paths and values.

It knows nothing of fields or sections, and imports nothing else of the kernel.
"""
