"""Adapters and their quantized bases."""
