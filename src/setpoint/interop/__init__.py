"""What other systems call our fields and values; the core does without it."""
