"""Names and values of other systems for our fields; the core does without them."""
