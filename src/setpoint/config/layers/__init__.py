"""Layers of values on a draft: files, presets, modifiers, the environment and flags.

It uses `draft`, `files` and what is below them.
"""
