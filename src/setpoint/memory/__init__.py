"""Activation checkpointing, activation offload, allocators and the memory report."""
