"""Orderly stops, and scheduling of garbage collection."""
