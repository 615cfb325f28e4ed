"""Atomic files, locks, tensor files and threads, shared by all components."""
