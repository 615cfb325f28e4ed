"""Checkpoints: directories of safetensors and JSON that exist whole or not at all.

Importing this package imports no torch; `setpoint.checkpoint.store` holds the store.
"""
