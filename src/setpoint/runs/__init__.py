"""Runs on this disk: an index of their folders, labels, and a filter."""
