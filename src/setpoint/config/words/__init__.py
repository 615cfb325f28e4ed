"""The ground floor: errors, and how names, paths and values are spelt and shown.

It knows nothing of fields or sections, and imports nothing else of the kernel.
"""
