"""Layers of values on a draft: files, presets, modifiers, the environment and flags.

Uses `draft`, `files` and the parts below them.
"""
