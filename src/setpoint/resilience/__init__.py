"""Orderly stops, and the pace of garbage collection."""
