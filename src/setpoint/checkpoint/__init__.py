"""Checkpoints: directories of safetensors and JSON that are either complete or absent.

Importing this package does not import torch; the store is in `setpoint.checkpoint.store`.
"""
