"""A step of a job on one of its ranks without the others: its memory, traffic and arithmetic."""
