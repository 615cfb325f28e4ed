"""Activation checkpointing, activation offload, allocators and the report of memory."""
