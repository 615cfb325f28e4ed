"""Configuration files, names and checkpoints of other systems; the core imports none of it."""
