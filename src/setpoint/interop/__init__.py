"""Configuration files, names and checkpoints of other systems; nothing in the core imports it."""
