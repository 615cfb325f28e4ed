"""Checkpoints of other systems, read as weights, optimizer state and step."""
